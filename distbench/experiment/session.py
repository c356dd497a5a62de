"""
A run from its directory to its last file (floor F4): what every command shares; which levels come is a planner's matter.
"""

from __future__ import annotations

import contextlib
import dataclasses
import platform
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from importlib import metadata
from typing import Any

from distbench import __version__
from distbench.analysis.facts import LevelFacts, level_facts
from distbench.client.messages import HostInfo
from distbench.clock import ClockOffset
from distbench.core.levels import LevelSpec
from distbench.core.plan import Plan
from distbench.core.plan_io import plan_to_table
from distbench.core.prompts import Workload
from distbench.errors import FleetError, PlanError, TargetError
from distbench.experiment.level_run import LevelOutcome, LevelRunner
from distbench.experiment.observer import Observer
from distbench.experiment.planners import planned_levels
from distbench.experiment.redaction import Redaction
from distbench.experiment.signals import StopFlag
from distbench.experiment.target import TargetFacts, request_settings, secret_headers, wire_targets
from distbench.fleet.base import Fleet, FleetSetup
from distbench.fleet.limits import limit_problems
from distbench.fleet.versions import versions_problem
from distbench.store.reader import read_run
from distbench.store.recorder import Recorder
from distbench.store.rundir import RunDir
from distbench.store.runinfo import RunInfo, Totals, level_entry
from distbench.telemetry.scraper import Scraper
from distbench.telemetry.target import scrape_targets

_VERSIONED = ("ray", "pyarrow", "httpx", "numpy", "uvloop")


class Session:
    """
    One run under way: fleet, recorder, scraper and run.json, in step.

    Args:
        plan: The plan.
        run_dir: Its directory, made already.
        facts: What the preflight found out.
        workload: The prompts.
        fleet: Gives the clients when entered, and ends them.
        environ: Where the API key is.
        observer: Gets told.
        stop: Set when the user wants to stop.
        earlier: What run.json said of the part of the run that is gone on with; None: a new run.
    """

    def __init__(
        self,
        *,
        plan: Plan,
        run_dir: RunDir,
        facts: TargetFacts,
        workload: Workload,
        fleet: AbstractContextManager[Fleet],
        environ: Mapping[str, str],
        observer: Observer,
        stop: StopFlag,
        earlier: RunInfo | None = None,
    ) -> None:
        self.plan = plan
        self.run_dir = run_dir
        self.facts = facts
        self.notes: list[str] = list(dict.fromkeys([*(earlier.notes if earlier else ()), *facts.notes]))
        self.info = RunInfo() if earlier is None else earlier
        self.workload = workload
        self._fleets = contextlib.ExitStack()
        self._fleet_source = fleet
        self._fleet: Fleet | None = None
        self._headers = secret_headers(plan.target, environ)
        self._observer = observer
        self._stop = stop
        self._recorder = Recorder(run_dir)
        self._scraper: Scraper | None = None
        self._runner: LevelRunner | None = None
        self._specs: list[dict[str, Any]] = [dict(entry) for entry in (earlier.levels if earlier else ())]
        self._is_new = earlier is None

    @property
    def fleet(self) -> Fleet:
        """The clients, after open()."""
        if self._fleet is None:
            raise RuntimeError("open() comes first")
        return self._fleet

    @property
    def recorder(self) -> Recorder:
        """Where rows go; the driver adds those of lost clients itself."""
        return self._recorder

    def open(self) -> None:
        """
        Start the clients, try every target from each of them, start the telemetry, write run.json and plan.toml.

        Raises:
            FleetError: the clients cannot be had. TargetError: one of them cannot reach a target. StoreError: nothing can be written.
        """
        epoch_wall_ns, epoch_ns = self._epoch()
        hosts, offsets = self._adopt(self._fleet_source, epoch_ns)
        self._start_telemetry(epoch_ns)
        # Without the output: the plan repeats the run, and this directory is taken.
        plan_table = {key: value for key, value in plan_to_table(self.plan).items() if key != "output"}
        self.info = RunInfo(
            command=self.plan.command,
            plan=plan_table,
            versions=_versions(),
            hosts=[dataclasses.asdict(host) for host in hosts],
            clients_per_host=dict(Counter(host.hostname for host in hosts)),
            clock_offsets_start=_offset_entries(offsets),
            epoch_wall_ns=epoch_wall_ns,
            epoch_monotonic_ns=epoch_ns,
            seeds={"prompts": self.plan.prompts.seed},
            extra={"target": _target_entry(self.facts)},
        )
        self.run_dir.storage.reserve()
        self.run_dir.write_plan(plan_table)
        self.write_info()
        self._say_spread(hosts)
        self._make_runner(epoch_ns)

    def swap_fleet(self, fleet: AbstractContextManager[Fleet]) -> None:
        """
        End the clients and go on with others.

        Raises: as open().
        """
        self._fleets.close()
        hosts, offsets = self._adopt(fleet, self.info.epoch_monotonic_ns)
        entry = {
            "hosts": [dataclasses.asdict(host) for host in hosts],
            "clock_offsets_start": _offset_entries(offsets),
        }
        self.info = dataclasses.replace(self.info, extra={**self.info.extra, "second_fleet": entry})
        self._make_runner(self.info.epoch_monotonic_ns)

    def _epoch(self) -> tuple[int, int]:
        """Return the run's epoch as (wall ns, monotonic ns); a run that is gone on with keeps its time axis, by the wall clock."""
        wall_ns, monotonic_ns = time.time_ns(), time.monotonic_ns()
        if self._is_new:
            return wall_ns, monotonic_ns
        # A wall clock that was set back meanwhile must not lay the new levels over the old ones.
        wall_ns = max(wall_ns, self.info.ended_wall_ns or 0)
        return self.info.epoch_wall_ns, monotonic_ns - (wall_ns - self.info.epoch_wall_ns)

    def _adopt(
        self, fleet: AbstractContextManager[Fleet], epoch_ns: int
    ) -> tuple[Sequence[HostInfo], Sequence[ClockOffset]]:
        self._fleet = self._fleets.enter_context(fleet)
        self._observer.stage("starting clients")
        hosts = self._fleet.start()
        self._stop.install()
        problem = versions_problem(hosts)
        if problem is not None:
            raise FleetError(problem)
        most = max(spec.connections for spec in planned_levels(self.plan))
        problems = limit_problems(hosts, most, self.plan.target.urls)
        if problems:
            raise PlanError(problems)
        self._observer.stage(f"trying the target from {self._fleet.num_clients} clients")
        self._set_up_clients(self._fleet, epoch_ns)
        self._observer.stage("comparing clocks")
        return hosts, self._fleet.measure_clocks()

    def _make_runner(self, epoch_ns: int) -> None:
        self._runner = LevelRunner(
            fleet=self.fleet,
            recorder=self._recorder,
            scraper=self._scraper,
            observer=self._observer,
            stop=self._stop,
            epoch_ns=epoch_ns,
            # Through a proxy the driver's own connection would say nothing about the target.
            watched_urls=() if self.plan.target.trust_env else self.plan.target.urls,
            redaction=Redaction(self._headers),
        )

    def run_level(self, spec: LevelSpec, **more: Any) -> LevelOutcome:
        """
        Run one level; its settings are in run.json before its first request is sent.

        Args:
            spec: The level.
            more: What else run.json shall say of it.
        """
        if self._runner is None:
            raise RuntimeError("open() comes first")
        self._specs.append(level_entry(spec, **more))
        self.write_info()
        outcome = self._runner.run(spec)
        self._specs[-1] = level_entry(
            spec,
            **more,
            clients=list(outcome.clients),
            order_ns=outcome.order_ns,
            lost_clients={str(client): reason for client, reason in outcome.lost.items()},
            stopped=outcome.stopped,
            start_delays_ns={str(c): f.start_delay_ns for c, f in outcome.finished.items()},
            settled=[None if s is None else dataclasses.asdict(s) for s in (outcome.before, outcome.after)],
        )
        return outcome

    @property
    def next_level(self) -> int:
        """Number of the next level; those of interrupted levels are not used again."""
        return len(self._specs)

    def earlier_facts(self) -> list[LevelFacts]:
        """Return the levels that an earlier part of the run brought to their end; none in a new run."""
        if self._is_new:
            return []
        run = read_run(self.run_dir.storage)
        ended = [
            e
            for e in self._specs
            if e.get("settled") is not None and not e.get("stopped") and not e.get("lost_clients")
        ]
        return [level_facts(run, entry) for entry in ended if entry.get("purpose") is None]

    def level_entry(self, level: int) -> Mapping[str, Any]:
        """Return what run.json says of a level."""
        return self._specs[level]

    def write_info(self, **changes: Any) -> None:
        """Write run.json as things stand, with these fields changed."""
        self.info = dataclasses.replace(
            self.info, levels=list(self._specs), notes=list(self.notes), **changes
        )
        self.run_dir.write_info(self.info)

    def measure_clocks_again(self) -> None:
        """Measure the clock offsets after the load, where all clients still live."""
        if all(self.fleet.alive()):
            offsets = _offset_entries(self.fleet.measure_clocks())
            self.info = dataclasses.replace(self.info, clock_offsets_end=offsets)

    def close(self) -> None:
        """End telemetry and clients; a second call does nothing."""
        try:
            if self._scraper is not None:
                self._scraper.stop()
        finally:
            self._fleets.close()

    def finish(self, status: str, totals: Totals) -> None:
        """Write what is left and the final run.json; the latter also where the disk has no room for the former."""
        try:
            self._recorder.close()
        finally:
            self.write_info(status=status, totals=totals, ended_wall_ns=time.time_ns())

    def _set_up_clients(self, fleet: Fleet, epoch_ns: int) -> None:
        probes = fleet.setup(
            FleetSetup(
                targets=wire_targets(self.plan.target, self._headers),
                target_names=self.plan.target.urls,
                request=request_settings(self.plan.target, self.facts),
                workload=self.workload,
                http_client=self.plan.where.http_client,
                epoch_monotonic_ns=epoch_ns,
            )
        )
        failed = [probe for probe in probes if probe.error is not None]
        if failed:
            more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
            raise TargetError(
                f"client {failed[0].client} cannot reach {failed[0].target}: {failed[0].error}{more}; "
                "the driver can: is the address one that the clients' hosts know?"
            )

    def _start_telemetry(self, epoch_ns: int) -> None:
        judging, target = self.plan.judging, self.plan.target
        if not judging.metrics and not judging.gpu_metrics_urls:
            return
        targets = scrape_targets(
            target.urls if judging.metrics else (),
            metrics_urls=judging.metrics_urls,
            gpu_metrics_urls=judging.gpu_metrics_urls,
            auth_headers={name: value for name, value in self._headers if name.lower() == "authorization"},
        )
        self._scraper = Scraper(
            targets,
            epoch_ns=epoch_ns,
            ca_file=target.ca_file,
            insecure=target.insecure,
            trust_env=target.trust_env,
        )
        self._scraper.start()

    def _say_spread(self, hosts: Sequence[HostInfo]) -> None:
        spread = Counter(host.hostname for host in hosts)
        if len(spread) > 1 and max(spread.values()) > 1.5 * len(hosts) / len(spread):
            text = ", ".join(f"{count} on {name}" for name, count in spread.most_common())
            self.note(f"the clients are spread unevenly: {text}")

    def note(self, text: str) -> None:
        """Keep a sentence for run.json and show it."""
        if text not in self.notes:
            self.notes.append(text)
            self._observer.note(text)


def _versions() -> dict[str, str]:
    versions = {"distbench": __version__, "python": platform.python_version(), "kernel": platform.release()}
    for package in _VERSIONED:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _offset_entries(offsets: Sequence[ClockOffset]) -> list[dict[str, Any]]:
    return [{"client": client, **dataclasses.asdict(offset)} for client, offset in enumerate(offsets)]


def _target_entry(facts: TargetFacts) -> dict[str, Any]:
    return {
        "model": facts.model,
        "max_model_len": facts.max_model_len,
        "version": facts.version,
        "ignore_eos": facts.ignore_eos,
        "usage": facts.usage,
    }
