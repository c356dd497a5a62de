"""
The commands that send load, as functions (floor F4).

Order of checks: options and plan (checked by the caller) -> output -> target from the driver -> fleet -> target from each client.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence

from distbench.core.levels import LevelSpec
from distbench.core.plan import Plan
from distbench.core.prompts import Workload
from distbench.core.summary import DEFAULT_BLOCK_TOKENS, describe
from distbench.core.workload import build_workload, fit_level
from distbench.errors import StoreError
from distbench.experiment.datafile import check_dataset, open_dataset
from distbench.experiment.fleets import fleet_for
from distbench.experiment.loop import Experiment
from distbench.experiment.observer import Observer, SilentObserver
from distbench.experiment.planners import make_planner, planned_levels
from distbench.experiment.preflight import check_target
from distbench.experiment.result import RunResult
from distbench.experiment.session import Session
from distbench.experiment.shapes import fit_shapes, shapes_population
from distbench.experiment.signals import StopFlag
from distbench.experiment.target import TargetFacts
from distbench.experiment.tokenizing import measure_tokens
from distbench.store.reader import open_run
from distbench.store.rundir import RunDir
from distbench.store.runinfo import RunInfo


def run_plan(
    plan: Plan,
    observer: Observer | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    stop: StopFlag | None = None,
) -> RunResult:
    """
    Carry out a plan and return its outcome; everything measured is in its run directory.

    Args:
        plan: Which command, and all settings.
        observer: Gets told; None: nobody.
        environ: Where the API key is; None: this process' environment.
        stop: Set it to end the run in order; None: Ctrl-C and SIGTERM do.

    Raises:
        PlanError, StoreError, TargetError, FleetError: before the first request was sent, and nothing is left behind.
    """
    check_dataset(plan.prompts)
    run_dir = RunDir.create(plan.where.output)
    try:
        return _carry_out(plan, run_dir, observer, environ, stop, earlier=None)
    except BaseException:
        run_dir.discard()
        raise


def resume_run(
    run: str,
    plan: Plan,
    observer: Observer | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    stop: StopFlag | None = None,
) -> RunResult:
    """
    Go on with a capacity search that was interrupted; the levels it measured count.

    Args:
        run: Its run directory.
        plan: Its plan (the one in its plan.toml).
        observer: As for run_plan.
        environ: As for run_plan.
        stop: As for run_plan.

    Raises:
        StoreError: the run is complete, or no capacity search; else as run_plan, and the directory stays as it was.
    """
    earlier = open_run(run).info
    if earlier.command != "capacity":
        raise StoreError(f"--resume {run}: is a {earlier.command}, only capacity has levels to go on with")
    if earlier.status == "complete":
        raise StoreError(f"--resume {run}: is complete; there is nothing to go on with")
    check_dataset(plan.prompts)
    return _carry_out(plan, RunDir.reopen(run), observer, environ, stop, earlier=earlier)


def _carry_out(
    plan: Plan,
    run_dir: RunDir,
    observer: Observer | None,
    environ: Mapping[str, str] | None,
    stop: StopFlag | None,
    *,
    earlier: RunInfo | None,
) -> RunResult:
    observer = SilentObserver() if observer is None else observer
    environ = os.environ if environ is None else environ
    stop = StopFlag() if stop is None else stop
    with contextlib.ExitStack() as stack:
        stack.callback(stop.restore)
        stop.install_early()
        observer.stage("trying the target")
        facts = check_target(plan.target, environ, metrics=plan.judging.metrics)
        for note in facts.notes:
            observer.note(note)
        workload = _make_workload(plan, facts, environ, observer)
        levels, warnings = _foretell(plan, facts, workload, observer)
        session = Session(
            plan=plan,
            run_dir=run_dir,
            facts=facts,
            workload=workload,
            fleet=fleet_for(plan, observer),
            environ=environ,
            observer=observer,
            stop=stop,
            earlier=earlier,
        )
        stack.callback(session.close)
        try:
            session.open()
        except SystemExit as leave:
            # Ray's own handler of SIGTERM raises it, from ray.init until install() takes over.
            raise KeyboardInterrupt from leave
        for warning in warnings:
            session.note(warning)
        return Experiment(session, make_planner(plan, levels), observer).run()


def _make_workload(
    plan: Plan, facts: TargetFacts, environ: Mapping[str, str], observer: Observer
) -> Workload:
    calibration = measure_tokens(plan, facts, environ, observer)
    with open_dataset(plan.prompts) as lines:
        return build_workload(
            plan,
            dataset_lines=lines,
            calibration=calibration,
            max_model_len=facts.max_model_len,
            population=shapes_population(plan) if plan.command == "shapes" else None,
        )


def _foretell(
    plan: Plan, facts: TargetFacts, workload: Workload, observer: Observer
) -> tuple[list[LevelSpec], list[str]]:
    """Tell what will be asked of the server; return the levels known beforehand and what is to be kept in mind of them."""
    levels = [fit_level(spec, plan, workload) for spec in planned_levels(plan)]
    # The levels of a ladder differ in nothing that is told here, nor do repeats.
    shown = [spec for spec in levels if spec.repeat == 0] if plan.command == "shapes" else levels[:1]
    summary = describe(
        workload,
        shown,
        max_model_len=facts.max_model_len,
        block_tokens=facts.block_tokens or DEFAULT_BLOCK_TOKENS,
    )
    for line in summary.lines():
        observer.tell(line)
    if plan.command != "shapes":
        return levels, _split_conversations(plan, workload, levels)
    return fit_shapes(levels, summary.levels, facts.max_model_len)


def _split_conversations(plan: Plan, workload: Workload, levels: Sequence[LevelSpec]) -> list[str]:
    """Say where several clients may share one conversation: requests are dealt out in turn, and no client sees another's answers."""
    is_dealt_out = any(spec.is_open_loop or spec.requests is None for spec in levels)
    if getattr(workload, "is_single_turn", True) or plan.load.clients == 1 or not is_dealt_out:
        return []
    return [
        "turns of one conversation may go to different clients, and then do not wait for each other's answers: "
        "use --clients 1, or a burst of a fixed number of requests, which keeps a conversation on one client"
    ]
