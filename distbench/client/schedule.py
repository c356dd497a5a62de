"""
The open loop: the plan decides when a request is sent, the server never does (floor F3).

Slots have absolute times; a late one is sent as soon as it can be, and its lateness is in its row (sent - scheduled). A slot that
finds no free connection under the cap waits for one in order, as in wrk2: its response time counts from its schedule, so that the
wait is seen. It is dropped only when the level ends (deadline, stop) before it was sent.
"""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Callable, Iterator
from time import monotonic_ns

import numpy as np
import numpy.typing as npt

from distbench.client.alarm import Alarm
from distbench.client.held import Held
from distbench.client.work import Leftover, Work, WorkBuilder, handed_over
from distbench.core.records import Phase
from distbench.core.shards import ClientShare

# Bodies built ahead of their slots.
_READY_TARGET = 256
_READY_BYTES = 32 * 2**20


class Schedule:
    """The open-loop Source."""

    def __init__(
        self,
        share: ClientShare,
        due_ns: npt.NDArray[np.int64],
        builder: WorkBuilder,
        *,
        on_low: Callable[[], object] = lambda: None,
    ) -> None:
        """
        Prepare; start() begins to hand out.

        Args:
            share: What this client has to send.
            due_ns: Times of its slots on the client's clock, ascending: its warm-up requests, then its measured ones. An
                open-ended share ends with the times.
            builder: Makes the requests.
            on_low: Called when it is time to prepare() more.
        """
        self._due_ns: list[int] = due_ns.tolist()
        self._builder = builder
        self._on_low = on_low
        self._warmup = share.warmup
        self._measured = share.measured
        self._planned = not share.open_ended
        self._num_targets = max(share.targets, default=0) + 1
        self._targets = share.targets
        self._next = 0
        self._built = 0
        self._ready: collections.deque[Work] = collections.deque()
        self._ready_bytes = 0
        self._held = Held()
        self._released: collections.deque[Work] = collections.deque()
        self._free: list[list[asyncio.Future[Work | None]]] = [[] for _ in range(self._num_targets)]
        self._closed = False
        self._alarm: Alarm | None = None
        self._alarm_ns = 0
        self.measured_start_ns: int | None = None
        self.pool_empty_ns: int | None = None

    def start(self) -> None:
        """Begin to watch the times; to be called on the loop."""
        if not self._closed:
            self._alarm = Alarm(self._on_alarm)
            self._dispatch()

    def take(self, lane: int) -> Work | None:
        """Return the next request that is due; None where none is."""
        while not self._closed:
            if self._released:
                return self._mark(self._released.popleft())
            if self._next >= len(self._due_ns) or self._due_ns[self._next] > monotonic_ns():
                return None
            work = self._pop()
            if work is not None:
                return self._mark(work)
        return None

    async def wait(self, lane: int) -> Work | None:
        """Wait for a slot; None: none is left."""
        if self._is_over():
            return None
        future: asyncio.Future[Work | None] = asyncio.get_running_loop().create_future()
        self._free[self._targets[lane]].append(future)
        self._dispatch()
        try:
            return await future
        except asyncio.CancelledError:
            work = handed_over(future)
            if work is not None:
                self._released.appendleft(work)
            raise

    def done(self, work: Work) -> None:
        """Let those that follow this request go."""
        followers = self._held.ended(work.request_id, monotonic_ns())
        for follower in followers:
            self._release(follower)
        if followers or self._held.next_due_ns is not None:
            self._dispatch()

    def prepare(self, until_ns: int) -> bool:
        """Build ahead; return whether more is wanted."""
        while self._wants_more():
            self._build()
            if monotonic_ns() >= until_ns:
                return self._wants_more()
        return False

    def close(self) -> None:
        """Hand out nothing more."""
        self._closed = True
        if self._alarm is not None:
            self._alarm.close()
        self._release_lanes()

    def leftovers(self) -> Iterator[Leftover]:
        """Yield the slots that were never sent."""
        for work in [*self._released, *self._ready, *self._held]:
            yield Leftover(work.phase, work.index, work.scheduled_ns)
        for slot in range(self._built, len(self._due_ns)):
            phase, index = self._slot(slot)
            yield Leftover(phase, index, self._due_ns[slot])
        # Requests that were asked for but whose times lie past the duration or the end of the trace.
        for index in self._measured[max(0, len(self._due_ns) - len(self._warmup)) :] if self._planned else ():
            yield Leftover(Phase.MEASURED, index, None)

    def _slot(self, slot: int) -> tuple[Phase, int]:
        if slot < len(self._warmup):
            return Phase.WARMUP, self._warmup[slot]
        return Phase.MEASURED, self._measured[slot - len(self._warmup)]

    def _build(self) -> None:
        phase, index = self._slot(self._built)
        work = self._builder.build(phase, index, self._due_ns[self._built])
        self._built += 1
        self._ready.append(work)
        self._ready_bytes += len(work.body)

    def _wants_more(self) -> bool:
        return (
            not self._closed
            and self._built < len(self._due_ns)
            and len(self._ready) < _READY_TARGET
            and self._ready_bytes < _READY_BYTES
        )

    def _pop(self) -> Work | None:
        """Take the slot that is next; None where it must wait for an answer first."""
        if not self._ready:
            self._build()
        work = self._ready.popleft()
        self._next += 1
        self._ready_bytes -= len(work.body)
        if len(self._ready) == _READY_TARGET // 2:
            self._on_low()
        return None if self._held.hold(work, monotonic_ns()) else work

    def _release(self, work: Work) -> None:
        # Its turn could not come before the answer that it follows: that wait is the server's, not lateness of ours.
        work.scheduled_ns = max(work.scheduled_ns or 0, monotonic_ns())
        self._released.append(self._builder.rebuilt(work))

    def _mark(self, work: Work) -> Work:
        if work.phase is Phase.MEASURED and self.measured_start_ns is None:
            self.measured_start_ns = monotonic_ns()
        if self._all_taken():
            self.pool_empty_ns = monotonic_ns()
        return work

    def _all_taken(self) -> bool:
        return self._next >= len(self._due_ns) and not self._released and not self._held

    def _is_over(self) -> bool:
        return self._closed or self._all_taken()

    def _dispatch(self) -> None:
        """Hand what is due to free lanes, and set the alarm for what is next."""
        if self._alarm is None:
            return
        while self._has_due() and (free := self._free_lane()) is not None:
            target, future = free
            work = self.take(-1)
            if work is None:
                self._free[target].append(future)
            else:
                future.set_result(work)
        if self._is_over():
            self._release_lanes()
        elif not self._has_due():
            self._set_alarm()

    def _set_alarm(self) -> None:
        dues_ns = [] if self._held.next_due_ns is None else [self._held.next_due_ns]
        if self._next < len(self._due_ns):
            dues_ns.append(self._due_ns[self._next])
        due_ns = min(dues_ns, default=0)
        if self._alarm is not None and due_ns and due_ns != self._alarm_ns:
            self._alarm_ns = due_ns
            self._alarm.set(due_ns)

    def _on_alarm(self) -> None:
        self._alarm_ns = 0
        self._dispatch()

    def _has_due(self) -> bool:
        now_ns = monotonic_ns()
        while self._held.next_due_ns is not None and (work := self._held.pop_due(now_ns)) is not None:
            self._release(work)
        if self._released:
            return True
        return self._next < len(self._due_ns) and self._due_ns[self._next] <= now_ns

    def _free_lane(self) -> tuple[int, asyncio.Future[Work | None]] | None:
        """Return the lane used last among those of the slot's own target, or of the next target that has one."""
        for offset in range(self._num_targets):
            target = (self._next + offset) % self._num_targets
            lanes = self._free[target]
            while lanes:
                future = lanes.pop()
                if not future.done():
                    return target, future
        return None

    def _release_lanes(self) -> None:
        for lanes in self._free:
            while lanes:
                future = lanes.pop()
                if not future.done():
                    future.set_result(None)
