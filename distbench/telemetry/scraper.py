"""
Scrapes /metrics beside the load (floor F2): a thread with a loop of its own, on an absolute schedule.

Nothing here can disturb or fail a level: a scrape that does not work is a note. Times are the middle of each fetch, relative to the
run's epoch, on the driver's clock.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import ssl
import threading
import time
from collections.abc import Mapping, Sequence
from types import TracebackType

import httpx
import pyarrow as pa

from distbench.telemetry.exposition import Sample
from distbench.telemetry.rows import ServerRows
from distbench.telemetry.settle import CounterState, Settled, SettleTracker, counter_state
from distbench.telemetry.target import Scrape, ScrapeTarget, scrape
from distbench.units import NS_PER_S, s_to_ns

_LOG = logging.getLogger(__name__)
_MAX_NOTES = 1000
_SETTLE_INTERVAL_S = 0.25
_JOIN_TIMEOUT_S = 10.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScrapeNote:
    """
    Something that went wrong beside the load.

    Attributes:
        time_ns: Relative to the run's epoch.
        target: Name of the target.
        text: One sentence.
    """

    time_ns: int
    target: str
    text: str


class Scraper:
    """
    Scrapes a number of targets until stopped.

    Args:
        targets: What to scrape; may be empty, then everything here is empty too.
        epoch_ns: The run's epoch on this process' CLOCK_MONOTONIC.
        interval_s: Time between the starts of two scrapes of a target.
        timeout_s: Limit of one scrape.
        ca_file: PEM file of trusted roots; None: the system's.
        insecure: TLS without verification.
        trust_env: Obey the proxy variables of the environment.
    """

    def __init__(
        self,
        targets: Sequence[ScrapeTarget],
        *,
        epoch_ns: int,
        interval_s: float = 0.5,
        timeout_s: float = 5.0,
        ca_file: str | None = None,
        insecure: bool = False,
        trust_env: bool = False,
    ) -> None:
        self._targets = tuple(targets)
        self._epoch_ns = epoch_ns
        self._interval_ns = s_to_ns(interval_s)
        self._timeout_s = timeout_s
        self._verify = _verification(ca_file, insecure)
        self._trust_env = trust_env
        self._rows = ServerRows()
        self._notes: list[ScrapeNote] = []
        self._states: dict[str, CounterState] = {}
        self._helps: dict[str, str] = {}
        self._bad_lines = 0
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._ready = threading.Event()

    def __enter__(self) -> Scraper:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def targets(self) -> tuple[ScrapeTarget, ...]:
        """What is scraped."""
        return self._targets

    @property
    def helps(self) -> Mapping[str, str]:
        """HELP texts seen so far, by family name: units are read from them."""
        return dict(self._helps)

    @property
    def bad_lines(self) -> int:
        """Lines that could not be read, over all scrapes."""
        return self._bad_lines

    def start(self) -> None:
        """Start scraping; with no targets nothing is started."""
        if not self._targets or self._thread is not None:
            return
        self._thread = threading.Thread(target=self._run, name="distbench-scraper", daemon=True)
        self._thread.start()
        self._ready.wait()

    def stop(self) -> None:
        """Stop after the scrapes under way, within a limit; a second call does nothing."""
        thread, loop, stop = self._thread, self._loop, self._stop
        self._thread = None
        if thread is None or loop is None or stop is None:
            return
        loop.call_soon_threadsafe(stop.set)
        thread.join(_JOIN_TIMEOUT_S)

    def drain(self) -> pa.Table:
        """Return the rows since the last call, schema SERVER, possibly none."""
        return self._rows.drain()

    def notes(self) -> tuple[ScrapeNote, ...]:
        """Return what went wrong so far (the first thousand of it)."""
        return tuple(self._notes)

    def latest(self) -> Mapping[str, CounterState]:
        """Return the newest reading of each target that ever answered, for progress displays."""
        return dict(self._states)

    def settle(self, timeout_s: float = 15.0) -> Settled:
        """
        Scrape until every server's counters stand still, and return the moment.

        Call it before and after a level: the deltas between the two hold all of the level's work and nothing else. It returns after
        timeout_s in any case, then with ``steady`` false and the busy targets named (traffic of someone else, or requests that go
        on). Targets that do not answer are named too.

        Raises:
            RuntimeError: the scraper was not started.
        """
        servers = [target for target in self._targets if not target.is_gpu]
        if not servers:
            return Settled(time_ns=time.monotonic_ns() - self._epoch_ns, steady=False, busy=(), silent=())
        if self._loop is None or self._thread is None:
            raise RuntimeError("settle() needs a started scraper")
        future = asyncio.run_coroutine_threadsafe(self._settle(servers, timeout_s), self._loop)
        return future.result(timeout_s + 2 * self._timeout_s + 5.0)

    def _run(self) -> None:
        asyncio.run(self._main())

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        async with httpx.AsyncClient(
            verify=self._verify,
            trust_env=self._trust_env,
            timeout=self._timeout_s,
            limits=httpx.Limits(max_keepalive_connections=0),
        ) as client:
            self._client = client
            self._ready.set()
            async with asyncio.TaskGroup() as group:
                for target in self._targets:
                    group.create_task(self._follow(target, self._stop))

    async def _follow(self, target: ScrapeTarget, stop: asyncio.Event) -> None:
        """Scrape one target at fixed moments; a slow answer skips moments, it never shifts them."""
        start_ns = time.monotonic_ns()
        tick = 0
        while not stop.is_set():
            self._record(target, await scrape(self._client, target))
            now_ns = time.monotonic_ns()
            tick = max(tick + 1, (now_ns - start_ns) // self._interval_ns + 1)
            wait_s = (start_ns + tick * self._interval_ns - now_ns) / NS_PER_S
            try:
                await asyncio.wait_for(stop.wait(), wait_s)
            except TimeoutError:
                continue

    async def _settle(self, servers: Sequence[ScrapeTarget], timeout_s: float) -> Settled:
        deadline_ns = time.monotonic_ns() + s_to_ns(timeout_s)
        trackers = {target.name: SettleTracker() for target in servers}
        while True:
            open_ones = [target for target in servers if not trackers[target.name].is_steady]
            results = await asyncio.gather(*(scrape(self._client, target) for target in open_ones))
            for target, result in zip(open_ones, results, strict=True):
                trackers[target.name].add(self._record(target, result))
            steady = all(tracker.is_steady for tracker in trackers.values())
            now_ns = time.monotonic_ns()
            if steady or now_ns >= deadline_ns:
                return Settled(
                    time_ns=now_ns - self._epoch_ns,
                    steady=steady,
                    busy=tuple(name for name, t in trackers.items() if not t.is_steady and t.answered),
                    silent=tuple(name for name, t in trackers.items() if not t.is_steady and not t.answered),
                )
            await asyncio.sleep(_SETTLE_INTERVAL_S)

    def _record(self, target: ScrapeTarget, result: Scrape) -> CounterState | None:
        """Keep a scrape's rows and notes; return what its counters say, None where it failed."""
        time_ns = result.time_ns - self._epoch_ns
        if result.exposition is None:
            self._note(time_ns, target, result.problem or "failed")
            return None
        exposition = result.exposition
        if exposition.bad_lines:
            self._bad_lines += exposition.bad_lines
            self._note(time_ns, target, f"{target.name}: {exposition.bad_lines} unreadable lines in /metrics")
        samples: tuple[Sample, ...] = exposition.samples
        self._rows.append(time_ns, target.name, samples)
        self._helps.update(exposition.helps)
        if target.is_gpu:
            return None
        state = counter_state(time_ns, samples)
        self._states[target.name] = state
        return state

    def _note(self, time_ns: int, target: ScrapeTarget, text: str) -> None:
        _LOG.debug("%s", text)
        if len(self._notes) < _MAX_NOTES:
            self._notes.append(ScrapeNote(time_ns=time_ns, target=target.name, text=text))


def _verification(ca_file: str | None, insecure: bool) -> ssl.SSLContext | bool:
    """Return httpx's verify argument; a context is built once, for loading roots costs 20 ms."""
    if insecure:
        return False
    return ssl.create_default_context(cafile=ca_file) if ca_file else True
