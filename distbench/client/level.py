"""
One level on one client, from the order to the last row (floor F3).

The stages: connect ahead of the start, a bounded number at a time; start by an absolute deadline; let the lanes work; end when the
source is empty, the time is over or somebody says stop; read what is still unread; report. Every planned request gets a row.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from time import monotonic_ns

from distbench.client.alarm import sleep_until_ns
from distbench.client.background import Background
from distbench.client.codec import Codec
from distbench.client.connections import connection_to
from distbench.client.counters import LevelCounters
from distbench.client.finishing import Finisher
from distbench.client.gc_pause import GcPause
from distbench.client.lane import Lane, LaneShared
from distbench.client.messages import ClientSetup, Finished, LevelStart
from distbench.client.outbox import Outbox
from distbench.client.pool import Pool
from distbench.client.reporter import Reporter
from distbench.client.schedule import Schedule
from distbench.client.watchdog import Watchdog
from distbench.client.work import Source, WorkBuilder
from distbench.core.arrivals import client_offsets_ns, offsets_ns
from distbench.core.shards import ClientShare, level_share
from distbench.units import NS_PER_S, s_to_ns

# Connections in the making at a time: more would overflow the server's backlog and time out in the kernel's retries.
_CONNECTING_AT_ONCE = 256
# Open loop holds connections only as a cap; so many are opened ahead, the rest when a slot needs them.
_OPEN_LOOP_AHEAD = 256
_TICK_S = 0.1


class ClientLevel:
    """Runs one level on the running loop."""

    def __init__(
        self, setup: ClientSetup, order: LevelStart, *, outbox: Outbox, gc_pause: GcPause, watchdog: Watchdog
    ) -> None:
        self._setup = setup
        self._order = order
        self._outbox = outbox
        self._gc_pause = gc_pause
        self._watchdog = watchdog
        self._reason: str | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._source: Source | None = None

    async def run(self) -> Finished:
        """Run it; rows, samples and counters go to the outbox, the last word is returned."""
        with self._gc_pause:
            return await self._run()

    def stop(self, reason: str) -> None:
        """Cut what is in flight and end the level; does nothing where it is ending already. On the loop's thread."""
        if self._reason is None:
            self._reason = reason
            if self._source is not None:
                self._source.close()
            for task in self._tasks:
                task.cancel()

    async def _run(self) -> Finished:
        order, setup = self._order, self._setup
        share = level_share(
            order.spec,
            position=order.position,
            num_clients=order.num_clients,
            num_targets=len(setup.targets),
        )
        counters = LevelCounters()
        codec = Codec(setup.request)
        wake = asyncio.Event()
        finisher = Finisher(setup, order, codec, counters, on_added=wake.set)
        builder = WorkBuilder(order.spec, setup.workload, codec.encode, order.start_ns)
        source = self._source = self._make_source(share, builder, wake.set)
        shared = LaneShared(
            source=source, counters=counters, finisher=finisher, retries=setup.request.retries
        )
        lanes = self._make_lanes(share, codec, shared)
        reporter = Reporter(
            setup.client, order, self._outbox, counters, finisher, lanes, self._gc_pause.relieve
        )
        background = Background(source, finisher, wake)
        helpers = [
            asyncio.create_task(background.run()),
            asyncio.create_task(self._tick(reporter, source)),
        ]
        for helper in helpers:
            helper.add_done_callback(self._stop_on_fault)
        try:
            await self._work(lanes, source, reporter)
            source.close()
            background.end()
            await helpers[0]
            await self._drop_leftovers(source, finisher)
        finally:
            for helper in helpers:
                helper.cancel()
            reporter.final()
            await asyncio.gather(*(lane.wire.close() for lane in lanes))
        _raise_faults(await asyncio.gather(*helpers, return_exceptions=True))
        return Finished(
            client=setup.client,
            measured_start_ns=_relative(source.measured_start_ns, order.epoch_ns),
            pool_empty_ns=_relative(source.pool_empty_ns, order.epoch_ns),
            reason=self._reason or "complete",
            start_delay_ns=_relative(counters.first_sent_ns, order.start_ns),
        )

    def _stop_on_fault(self, helper: asyncio.Task[None]) -> None:
        """End the level when a helper has a bug: without it the memory would fill, or the level never end."""
        if not helper.cancelled() and helper.exception() is not None:
            self.stop("fault")

    def _make_source(self, share: ClientShare, builder: WorkBuilder, on_low: Callable[[], object]) -> Source:
        order, workload = self._order, self._setup.workload
        if not order.spec.is_open_loop:
            return Pool(share, builder, limit=workload.num_requests(), on_low=on_low)
        offsets = client_offsets_ns(
            order.spec, workload, position=order.position, num_clients=order.num_clients
        )
        return Schedule(share, offsets + order.start_ns, builder, on_low=on_low)

    def _make_lanes(self, share: ClientShare, codec: Codec, shared: LaneShared) -> list[Lane]:
        setup = self._setup
        return [
            Lane(
                number,
                connection,
                target,
                connection_to(setup, target, codec.token_seen, codec.template_of),
                shared,
            )
            for number, (connection, target) in enumerate(zip(share.connections, share.targets, strict=True))
        ]

    async def _work(self, lanes: list[Lane], source: Source, reporter: Reporter) -> None:
        """Connect, start on time, and wait until all lanes have ended."""
        connecting = asyncio.Semaphore(_CONNECTING_AT_ONCE)
        started = asyncio.Event()
        ahead = _OPEN_LOOP_AHEAD if self._order.spec.is_open_loop else len(lanes)

        async def work(lane: Lane) -> None:
            if lane.number < ahead:
                async with connecting:
                    await lane.wire.connect()  # a failure is told by the row of the request that tries again
            await started.wait()
            await lane.run()

        async def start() -> None:
            await sleep_until_ns(self._order.start_ns)
            reporter.level_starts()
            if isinstance(source, Schedule):
                source.start()
            started.set()

        self._tasks = [asyncio.create_task(work(lane)) for lane in lanes]
        self._tasks.append(asyncio.create_task(start()))
        if self._reason is not None:  # stopped while it was being set up
            for task in self._tasks:
                task.cancel()
        _raise_faults(await asyncio.gather(*self._tasks, return_exceptions=True))

    async def _tick(self, reporter: Reporter, source: Source) -> None:
        """Watch over the limits and report."""
        deadline_ns = self._open_loop_deadline_ns()
        order = self._order
        while True:
            now_ns = monotonic_ns()
            if (
                deadline_ns is None
                and order.spec.duration_s is not None
                and source.measured_start_ns is not None
            ):
                deadline_ns = source.measured_start_ns + s_to_ns(order.spec.duration_s)
            if deadline_ns is not None and now_ns >= deadline_ns:
                self.stop("deadline")
            if order.hard_end_ns is not None and now_ns >= order.hard_end_ns:
                self.stop("hard_end")
            if self._watchdog.is_silent(now_ns):
                self.stop("driver_silent")
            if reporter.tick(now_ns):
                self.stop("results_not_collected")
            sleep_s = _TICK_S
            if deadline_ns is not None and now_ns < deadline_ns:
                sleep_s = min(sleep_s, max(0.001, (deadline_ns - now_ns) / NS_PER_S))
            await asyncio.sleep(sleep_s)

    def _open_loop_deadline_ns(self) -> int | None:
        """Return the end of an open-loop level with a duration: it counts from the first measured slot of all clients."""
        spec, workload = self._order.spec, self._setup.workload
        if not spec.is_open_loop or spec.duration_s is None:
            return None
        offsets = offsets_ns(spec, seed=workload.seed, trace_ns=workload.send_times_ns())
        first = int(offsets[spec.warmup]) if len(offsets) > spec.warmup else 0
        return self._order.start_ns + first + s_to_ns(spec.duration_s)

    async def _drop_leftovers(self, source: Source, finisher: Finisher) -> None:
        """Give a row to every planned request that was never taken, in slices."""
        for number, leftover in enumerate(source.leftovers()):
            finisher.drop(leftover)
            if number % 256 == 255:
                await asyncio.sleep(0)


def _raise_faults(results: Sequence[BaseException | None]) -> None:
    for result in results:
        if result is not None and not isinstance(result, asyncio.CancelledError):
            raise result


def _relative(stamp_ns: int | None, origin_ns: int) -> int | None:
    return None if stamp_ns is None else stamp_ns - origin_ns
