"""
One level from its order to its last row (floor F4): events of the fleet go to the recorder and the observer, nothing is judged.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence

from distbench.client.messages import Finished, Health, Lost, Progress, Rows
from distbench.core.levels import LevelSpec
from distbench.experiment.observer import Observer
from distbench.experiment.progress import LevelTally
from distbench.experiment.redaction import Redaction
from distbench.experiment.signals import StopFlag
from distbench.experiment.vigil import Vigil
from distbench.fleet.base import Fleet, LevelRun
from distbench.store.recorder import Recorder
from distbench.telemetry.scraper import Scraper
from distbench.telemetry.settle import Settled
from distbench.units import ns_to_s

_EVENT_WAIT_S = 0.25
_PROGRESS_INTERVAL_S = 0.5
_SETTLE_LIMIT_S = 15.0
# After stop() every client cuts its requests and reports within seconds; whoever does not is lost, and the run goes on to its end.
_DRAIN_LIMIT_S = 20.0
_START_LEAD_S = 1.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LevelOutcome:
    """
    How a level went, beside its rows.

    Attributes:
        spec: The level.
        clients: Those that took part, in the order of their positions (core/shards.level_share).
        order_ns: When its start was ordered for, relative to the run's epoch.
        finished: Last word of each client that ended in order.
        lost: Client -> reason of each that did not.
        stopped: None, or why the driver ended it early: interrupted | max_failures | target_gone.
        before, after: The settled moments around it; None without server metrics, or without a server.
    """

    spec: LevelSpec
    clients: tuple[int, ...]
    order_ns: int
    finished: Mapping[int, Finished]
    lost: Mapping[int, str]
    stopped: str | None
    before: Settled | None
    after: Settled | None


class LevelRunner:
    """Runs levels of one run, one after the other."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        recorder: Recorder,
        scraper: Scraper | None,
        observer: Observer,
        stop: StopFlag,
        epoch_ns: int,
        watched_urls: Sequence[str] = (),
        redaction: Redaction | None = None,
    ) -> None:
        """
        Prepare.

        Args:
            fleet: Started and set up.
            recorder: Takes the rows.
            scraper: The telemetry beside the load; None: there is none.
            observer: Gets told.
            stop: Set when the user wants to stop.
            epoch_ns: The run's epoch on the driver's CLOCK_MONOTONIC.
            watched_urls: Targets that the driver can connect to; a level ends when none of them takes connections any more.
            redaction: Knows the secrets that no file may hold; None: there are none.
        """
        self._fleet = fleet
        self._recorder = recorder
        self._scraper = scraper
        self._observer = observer
        self._stop = stop
        self._epoch_ns = epoch_ns
        self._watched_urls = tuple(watched_urls)
        self._redaction = redaction or Redaction(())

    def run(self, spec: LevelSpec) -> LevelOutcome:
        """
        Run one level and return when all its rows are in files.

        Raises:
            StoreError: the recorder cannot write; the level's load was stopped before this is raised.
        """
        before = self._settle()
        self._observer.level_started(spec)
        level = self._fleet.start_level(spec, lead_s=_START_LEAD_S)
        watch = _Watch(spec, ns_to_s(level.start_ns), self._watched_urls)
        try:
            self._follow(level, watch)
        except BaseException:
            level.stop()
            raise
        after = None if watch.stopped == "target_gone" else self._settle()
        self._record_server()
        self._recorder.flush()
        overdue = {
            client: "no word after the stop" for client in level.clients if not watch.has_ended(client)
        }
        return LevelOutcome(
            spec=spec,
            clients=level.clients,
            order_ns=level.start_ns - self._epoch_ns,
            finished=watch.finished,
            lost={**watch.lost, **overdue},
            stopped=watch.stopped,
            before=before,
            after=after,
        )

    def _follow(self, level: LevelRun, watch: _Watch) -> None:
        """Take events until every client has had its last word, or the limit after a stop has passed."""
        while not level.finished():
            for event in level.events(_EVENT_WAIT_S):
                if isinstance(event, Rows):
                    table = self._redaction.table(event.table)
                    self._recorder.add_requests(table, level=watch.spec.level, client=event.client)
                elif isinstance(event, Health):
                    self._recorder.add_clients(event.table, client=event.client)
                elif isinstance(event, Progress):
                    watch.tally.update(self._redacted(event), time.monotonic())
                elif isinstance(event, Finished):
                    watch.finished[event.client] = event
                elif isinstance(event, Lost):
                    watch.lose(event)
                    self._observer.note(f"client {event.client} lost: {event.reason}")
            self._record_server()
            self._recorder.tick()
            self._show(watch)
            self._stop_if_due(level, watch)
            if watch.is_overdue():
                break

    def _redacted(self, progress: Progress) -> Progress:
        if progress.last_error is None:
            return progress
        return dataclasses.replace(progress, last_error=self._redaction.text(progress.last_error))

    def _stop_if_due(self, level: LevelRun, watch: _Watch) -> None:
        limit = watch.spec.max_failures
        reason = None
        if self._stop.is_set():
            reason = "interrupted"
        elif limit is not None and watch.tally.failed >= limit:
            reason = "max_failures"
        elif (gone := watch.target_gone()) is not None:
            self._observer.note(gone)
            reason = "target_gone"
        if reason is not None and watch.stopped is None:
            watch.mark_stopped(reason)
            level.stop()

    def _show(self, watch: _Watch) -> None:
        now_s = time.monotonic()
        if now_s - watch.shown_s < _PROGRESS_INTERVAL_S:
            return
        watch.shown_s = now_s
        running, waiting = self._server_now()
        self._observer.progress(watch.tally.state(now_s, running, waiting))

    def _server_now(self) -> tuple[float | None, float | None]:
        """Return (running, waiting) at the servers by the newest scrape; None where not every target exports it."""
        states = list(self._scraper.latest().values()) if self._scraper is not None else []

        def total(values: list[float | None]) -> float | None:
            known = [value for value in values if value is not None]
            return sum(known) if known and len(known) == len(values) else None

        return total([s.running for s in states]), total([s.waiting for s in states])

    def _settle(self) -> Settled | None:
        if self._scraper is None:
            return None
        self._observer.stage("waiting until the server's counters stand still")
        return self._scraper.settle(_SETTLE_LIMIT_S)

    def _record_server(self) -> None:
        if self._scraper is not None:
            table = self._scraper.drain()
            if table.num_rows:
                self._recorder.add_server(table)


class _Watch:
    """What the loop of one level remembers."""

    def __init__(self, spec: LevelSpec, start_s: float, urls: Sequence[str]) -> None:
        self.spec = spec
        self.tally = LevelTally(spec, start_s=start_s)
        self.finished: dict[int, Finished] = {}
        self.lost: dict[int, str] = {}
        self.stopped: str | None = None
        self.shown_s = 0.0
        self._stopped_s: float | None = None
        self._start_s = start_s
        self._vigil = Vigil(urls) if urls else None

    def target_gone(self) -> str | None:
        """Return one sentence when the servers are gone; None else, and while it is not watched."""
        if self._vigil is None or self.stopped is not None or time.monotonic() < self._start_s:
            return None
        return self._vigil.look(self.tally.answered)

    def lose(self, event: Lost) -> None:
        self.lost[event.client] = event.reason
        self.tally.lose(event.client)

    def has_ended(self, client: int) -> bool:
        return client in self.finished or client in self.lost

    def mark_stopped(self, reason: str) -> None:
        self.stopped = reason
        self._stopped_s = time.monotonic()

    def is_overdue(self) -> bool:
        return self._stopped_s is not None and time.monotonic() - self._stopped_s > _DRAIN_LIMIT_S
