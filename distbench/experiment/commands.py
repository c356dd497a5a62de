"""
The commands that send load, as functions (floor F4): the order of checks, the loop over levels, the outcome.

Order: options and plan (checked by the caller) -> output -> target from the driver -> fleet -> target from each client -> levels.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping

from distbench.analysis.accounting import lost_rows
from distbench.analysis.facts import LevelFacts, level_facts
from distbench.analysis.judge import RunVerdict, judge_run
from distbench.analysis.level_row import to_table
from distbench.core.plan import Plan
from distbench.core.prompts import Workload
from distbench.core.workload import build_workload, fit_level
from distbench.errors import (
    EXIT_INCOMPLETE,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_SLO,
    FleetError,
    StoreError,
)
from distbench.experiment.datafile import check_dataset, open_dataset
from distbench.experiment.fleets import fleet_for
from distbench.experiment.level_run import LevelOutcome
from distbench.experiment.observer import Observer, SilentObserver
from distbench.experiment.planners import Planner, make_planner
from distbench.experiment.preflight import check_target
from distbench.experiment.result import RunResult
from distbench.experiment.session import Session
from distbench.experiment.signals import StopFlag
from distbench.experiment.target import TargetFacts
from distbench.experiment.tokenizing import measure_tokens
from distbench.store.reader import open_run
from distbench.store.rundir import RunDir
from distbench.store.runinfo import Totals


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
    observer = SilentObserver() if observer is None else observer
    environ = os.environ if environ is None else environ
    stop = StopFlag() if stop is None else stop
    check_dataset(plan.prompts)
    run_dir = RunDir.create(plan.where.output)
    try:
        with contextlib.ExitStack() as stack:
            stack.callback(stop.restore)
            session = _open_session(plan, run_dir, observer, environ, stop, stack)
            return _Experiment(session, make_planner(plan), observer, stop).run()
    except BaseException:
        run_dir.discard()
        raise


def _open_session(
    plan: Plan,
    run_dir: RunDir,
    observer: Observer,
    environ: Mapping[str, str],
    stop: StopFlag,
    stack: contextlib.ExitStack,
) -> Session:
    """Do all that comes before the first level; what was started is ended by the stack."""
    observer.stage("trying the target")
    facts = check_target(plan.target, environ)
    for note in facts.notes:
        observer.note(note)
    workload = _make_workload(plan, facts, environ, observer)
    session = Session(
        plan=plan,
        run_dir=run_dir,
        facts=facts,
        workload=workload,
        fleet=stack.enter_context(fleet_for(plan, observer)),
        environ=environ,
        observer=observer,
        stop=stop,
    )
    stack.callback(session.close)
    session.open()
    return session


def _make_workload(
    plan: Plan, facts: TargetFacts, environ: Mapping[str, str], observer: Observer
) -> Workload:
    calibration = measure_tokens(plan, facts, environ, observer)
    with open_dataset(plan.prompts) as lines:
        return build_workload(
            plan, dataset_lines=lines, calibration=calibration, max_model_len=facts.max_model_len
        )


class _Experiment:
    """The loop over the levels of one run."""

    def __init__(self, session: Session, planner: Planner, observer: Observer, stop: StopFlag) -> None:
        self._session = session
        self._planner = planner
        self._observer = observer
        self._stop = stop
        self._judged: list[LevelFacts] = []
        self._status = "complete"

    def run(self) -> RunResult:
        """Run level after level, then write the end of the run, whatever happens on the way."""
        session = self._session
        try:
            self._levels()
            if self._status == "complete":
                with contextlib.suppress(FleetError):
                    session.measure_clocks_again()
        except (StoreError, FleetError) as error:
            self._status = "incomplete"
            session.note(f"the run ended early: {error}")
        except BaseException:
            self._status = "incomplete"
            with contextlib.suppress(Exception):
                session.finish(self._status, self._totals())
            raise
        return self._conclude()

    def _levels(self) -> None:
        session = self._session
        while (spec := self._planner.next(self._judged)) is not None:
            outlook = self._planner.outlook(self._judged)
            if outlook is not None:
                self._observer.outlook(outlook)
            spec = fit_level(spec, session.plan, session.workload)
            outcome = session.run_level(spec)
            self._add_lost_rows(outcome)
            session.write_info()
            facts = level_facts(open_run(session.run_dir.uri), session.level_entry(spec.level))
            self._judged.append(facts)
            self._observer.level_done(facts.row)
            session.run_dir.write_levels(to_table(f.row for f in self._judged))
            if outcome.stopped == "interrupted":
                self._status = "interrupted"
                return
            if outcome.lost or outcome.stopped is not None:
                self._status = "incomplete"
                return

    def _add_lost_rows(self, outcome: LevelOutcome) -> None:
        if not outcome.lost:
            return
        session, spec = self._session, outcome.spec
        received = open_run(session.run_dir.uri).requests(spec.level, columns=["phase", "index"])
        for position, client in enumerate(outcome.clients):
            if client in outcome.lost:
                rows = lost_rows(
                    spec,
                    client=client,
                    position=position,
                    num_clients=len(outcome.clients),
                    num_targets=len(session.plan.target.urls),
                    received=received,
                )
                session.recorder.add_requests(rows, level=spec.level, client=client)
        session.recorder.flush()

    def _totals(self) -> Totals:
        words = ("planned", "ok", "failed", "cut", "dropped", "lost")
        return Totals(**{word: sum(f.row[f"requests_{word}"] for f in self._judged) for word in words})

    def _conclude(self) -> RunResult:
        """Judge the whole run from its files and write the end of it; a disk that is full now is told, not raised."""
        session = self._session
        verdict = None
        try:
            session.finish(self._status, self._totals())
            verdict = judge_run(open_run(session.run_dir.uri), self._judged)
            session.run_dir.write_levels(to_table(verdict.rows))
            session.run_dir.write_findings(verdict.findings)
        except StoreError as error:
            self._status = "incomplete"
            session.note(f"the end of the run could not be written: {error}")
        rows = [f.row for f in self._judged] if verdict is None else verdict.rows
        return RunResult(
            run=session.run_dir.uri,
            status=self._status,
            exit_code=self._exit_code(verdict),
            rows=rows,
            findings={} if verdict is None else verdict.findings,
            errors={} if verdict is None else verdict.errors,
            notes=tuple(session.notes),
        )

    def _exit_code(self, verdict: RunVerdict | None) -> int:
        totals = self._totals()
        if self._status == "interrupted":
            return EXIT_INTERRUPTED
        if self._status == "incomplete" or verdict is None or totals.ok == 0:
            return EXIT_INCOMPLETE
        return EXIT_SLO if verdict.slo_missed else EXIT_OK
