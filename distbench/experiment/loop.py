"""
The loop over the levels of one run, and its end (floor F4).

Whatever happens on the way - a full disk, a lost client, Ctrl-C, a fault of our own - the end is the same: what was measured is on disk,
and run.json says how it ended.
"""

from __future__ import annotations

import contextlib
import dataclasses

from distbench.analysis.accounting import lost_rows
from distbench.analysis.facts import LevelFacts, level_facts
from distbench.analysis.judge import VERIFY_PURPOSE, RunVerdict, judge_run, peak_of
from distbench.analysis.level_row import to_table
from distbench.core.levels import LevelSpec
from distbench.core.workload import fit_level
from distbench.errors import (
    EXIT_INCOMPLETE,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_SLO,
    FleetError,
    PlanError,
    StoreError,
    TargetError,
)
from distbench.experiment.fleets import fleet_for
from distbench.experiment.level_run import LevelOutcome
from distbench.experiment.observer import Observer
from distbench.experiment.planners import Planner, peak_repeats
from distbench.experiment.result import RunResult
from distbench.experiment.session import Session
from distbench.store.reader import read_run
from distbench.store.runinfo import Totals

_WORDS = ("planned", "ok", "failed", "cut", "dropped", "lost")


class Experiment:
    """
    Runs a session's levels as a planner wants them.

    Args:
        session: Open.
        planner: Says which level comes next.
        observer: Gets told.
    """

    def __init__(self, session: Session, planner: Planner, observer: Observer) -> None:
        self._session = session
        self._planner = planner
        self._observer = observer
        self._facts: list[LevelFacts] = []
        self._doubled: list[LevelFacts] = []
        self._status = "complete"

    def run(self) -> RunResult:
        """Run level after level, then write the end of the run."""
        session = self._session
        try:
            self._facts = session.earlier_facts()
            self._levels()
            if self._status == "complete":
                with contextlib.suppress(FleetError):
                    session.measure_clocks_again()
            if self._status == "complete" and session.plan.load.verify_client:
                self._verify_client()
        except (StoreError, FleetError) as error:
            self._status = "incomplete"
            session.run_dir.storage.release()
            session.note(f"the run ended early: {error}")
        except BaseException:
            session.run_dir.storage.release()
            with contextlib.suppress(Exception):
                session.finish("incomplete", self._totals())
            raise
        return self._conclude()

    def _levels(self) -> None:
        while self._status == "complete" and (spec := self._planner.next(self._facts)) is not None:
            outlook = self._planner.outlook(self._facts)
            if outlook is not None:
                self._observer.outlook(outlook)
            # A level that was cut by an earlier interruption has used its number up.
            numbered = dataclasses.replace(spec, level=self._session.next_level)
            self._facts.append(
                self._run_level(fit_level(numbered, self._session.plan, self._session.workload))
            )

    def _run_level(self, spec: LevelSpec, **more: str) -> LevelFacts:
        session = self._session
        outcome = session.run_level(spec, **more)
        self._add_lost_rows(outcome)
        session.write_info()
        facts = level_facts(read_run(session.run_dir.storage), session.level_entry(spec.level))
        self._observer.level_done(facts.row)
        session.run_dir.write_levels(to_table(f.row for f in [*self._facts, *self._doubled, facts]))
        if outcome.stopped == "interrupted":
            self._status = "interrupted"
        elif outcome.lost or outcome.stopped is not None:
            self._status = "incomplete"
        return facts

    def _add_lost_rows(self, outcome: LevelOutcome) -> None:
        """Give every planned request of a lost client a row, so that planned = rows."""
        if not outcome.lost:
            return
        session, spec = self._session, outcome.spec
        received = read_run(session.run_dir.storage).requests(spec.level, columns=["phase", "index"])
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

    def _verify_client(self) -> None:
        """Repeat the peak with twice the clients and the same connections."""
        session, plan = self._session, self._session.plan
        peak = peak_of(self._facts)
        if peak is None:
            session.note("the client cannot be verified: no level counts")
            return
        clients = session.fleet.num_clients
        doubled = dataclasses.replace(plan, load=dataclasses.replace(plan.load, clients=2 * clients))
        self._observer.stage(f"repeating the peak with {2 * clients} clients")
        try:
            session.swap_fleet(fleet_for(doubled, self._observer))
        except (FleetError, PlanError, TargetError) as error:
            session.note(f"the client could not be verified with {2 * clients} clients: {error}")
            return
        # As long as the level that it is held against.
        at_peak = next(f.spec for f in self._facts if f.spec.connections == peak and f.reading.counts)
        for repeat in range(peak_repeats(plan)):
            if self._status == "complete":
                spec = dataclasses.replace(at_peak, level=session.next_level, repeat=repeat)
                self._doubled.append(self._run_level(spec, purpose=VERIFY_PURPOSE))

    def _totals(self) -> Totals:
        rows = [facts.row for facts in [*self._facts, *self._doubled]]
        return Totals(**{word: sum(row[f"requests_{word}"] for row in rows) for word in _WORDS})

    def _conclude(self) -> RunResult:
        """Judge the whole run from its files and write the end of it; a disk that is full now is told, not raised."""
        session = self._session
        session.run_dir.storage.release()
        verdict = None
        try:
            session.finish(self._status, self._totals())
            verdict = judge_run(read_run(session.run_dir.storage), [*self._facts, *self._doubled])
            session.run_dir.write_levels(to_table(verdict.rows))
            session.run_dir.write_findings(verdict.findings)
        except StoreError as error:
            self._status = "incomplete"
            session.note(f"the end of the run could not be written: {error}")
        rows = [f.row for f in [*self._facts, *self._doubled]] if verdict is None else verdict.rows
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
        if self._status == "interrupted":
            return EXIT_INTERRUPTED
        if self._status == "incomplete" or verdict is None or self._totals().ok == 0:
            return EXIT_INCOMPLETE
        return EXIT_SLO if verdict.slo_missed else EXIT_OK
