"""
The closed loop: one pool of requests per client, drawn by its connections until it is empty (floor F3).

No waves and no semaphores: a connection that has an answer takes the next request at once. Warm-up requests come first; a
connection goes straight on to measured ones when no warm-up request is left, so that the server stays full in between. What a
measured request could see of other connections' warm-up lies before the window, which opens only when every connection has
finished a measured request, hence also its warm-up.
"""

from __future__ import annotations

import asyncio
import collections
import itertools
from collections.abc import Callable, Iterator
from time import monotonic_ns

from distbench.client.held import Held
from distbench.client.work import Leftover, Work, WorkBuilder, handed_over
from distbench.core.records import Phase
from distbench.core.shards import ClientShare
from distbench.units import NS_PER_S

# Bodies built ahead: enough for all connections to end on one step, within bounded memory.
_READY_SPARE = 32
_READY_BYTES = 64 * 2**20
# Requests that wait for another's answer and may be looked past in search of one that need not.
_MAX_HELD = 65_536


class Pool:
    """The closed-loop Source."""

    def __init__(
        self,
        share: ClientShare,
        builder: WorkBuilder,
        *,
        limit: int | None = None,
        on_low: Callable[[], object] = lambda: None,
    ) -> None:
        """
        Prepare; nothing is built yet.

        Args:
            share: What this client has to send.
            builder: Makes the requests.
            limit: Requests that the workload holds; an open-ended level ends there. None: as many as asked.
            on_low: Called when it is time to prepare() more.
        """
        self._builder = builder
        self._on_low = on_low
        self._open_ended = share.open_ended
        measured = share.measured
        if share.open_ended and limit is not None:
            measured = range(measured.start, min(measured.stop, limit), measured.step)
        self._last_measured = measured[-1] if measured else None
        self._order = itertools.chain(
            ((Phase.WARMUP, index) for index in share.warmup), ((Phase.MEASURED, index) for index in measured)
        )
        self._exhausted = False
        self._closed = False
        self._ready: collections.deque[Work] = collections.deque()
        self._ready_bytes = 0
        self._target = len(share.connections) + _READY_SPARE
        self._low = self._target - _READY_SPARE // 2
        self._held = Held()
        self._parked: collections.deque[asyncio.Future[Work | None]] = collections.deque()
        self._wake: asyncio.TimerHandle | None = None
        self.measured_start_ns: int | None = None
        self.pool_empty_ns: int | None = None

    def take(self, lane: int) -> Work | None:
        """Return the next request that may be sent now; None where none may."""
        if self._held.next_due_ns is not None:
            self._promote()
        if self._closed:
            return None
        while not self._ready:
            if not self._draw():
                return None
        work = self._ready.popleft()
        self._ready_bytes -= len(work.body)
        if not self._exhausted and len(self._ready) == self._low:
            self._on_low()
        if work.phase is Phase.MEASURED:
            if self.measured_start_ns is None:
                self.measured_start_ns = monotonic_ns()
            if self._exhausted and not self._ready and not self._held:
                self.pool_empty_ns = monotonic_ns()
        return work

    async def wait(self, lane: int) -> Work | None:
        """Wait for a request that is held back by another's answer or by its time; None: none is left."""
        if self._is_over():
            return None
        future: asyncio.Future[Work | None] = asyncio.get_running_loop().create_future()
        self._parked.append(future)
        self._plan_wake()
        try:
            return await future
        except asyncio.CancelledError:
            work = handed_over(future)
            if work is not None:
                self._ready.appendleft(work)
                self._ready_bytes += len(work.body)
            raise

    def done(self, work: Work) -> None:
        """Let those that follow this request go."""
        for follower in self._held.ended(work.request_id, monotonic_ns()):
            self._admit(follower)
        if self._parked:
            self._serve_parked()

    def prepare(self, until_ns: int) -> bool:
        """Build ahead; return whether more is wanted."""
        while self._wants_more():
            if not self._draw():
                return False
            if monotonic_ns() >= until_ns:
                return self._wants_more()
        return False

    def close(self) -> None:
        """Hand out nothing more."""
        self._closed = True
        if self._wake is not None:
            self._wake.cancel()
        while self._parked:
            _resolve(self._parked.popleft(), None)

    def leftovers(self) -> Iterator[Leftover]:
        """Yield what was never taken; nothing of an open-ended level was planned."""
        if self._open_ended:
            return
        for work in [*self._ready, *self._held]:
            yield Leftover(work.phase, work.index, None)
        for phase, index in self._order:
            yield Leftover(phase, index, None)

    def _wants_more(self) -> bool:
        return (
            not (self._exhausted or self._closed)
            and len(self._ready) < self._target
            and self._ready_bytes < _READY_BYTES
            and len(self._held) < _MAX_HELD
        )

    def _is_over(self) -> bool:
        return self._closed or (self._exhausted and not self._ready and not self._held)

    def _draw(self) -> bool:
        """Build the next request and put it where it belongs; False where none is left or too many are held back."""
        if self._exhausted or len(self._held) >= _MAX_HELD:
            return False
        drawn = next(self._order, None)
        if drawn is None:
            self._exhausted = True
            return False
        work = self._builder.build(*drawn)
        self._exhausted = work.phase is Phase.MEASURED and work.index == self._last_measured
        if not self._held.hold(work, monotonic_ns()):
            self._admit(work)
        return True

    def _admit(self, work: Work) -> None:
        self._ready.append(self._builder.rebuilt(work))
        self._ready_bytes += len(work.body)

    def _promote(self) -> None:
        now_ns = monotonic_ns()
        while (work := self._held.pop_due(now_ns)) is not None:
            self._admit(work)

    def _serve_parked(self) -> None:
        self._wake = None
        while self._parked:
            work = self.take(-1)
            if work is None:
                break
            if not _resolve(self._parked.popleft(), work):
                self._ready.appendleft(work)
                self._ready_bytes += len(work.body)
        if self._is_over():
            while self._parked:
                _resolve(self._parked.popleft(), None)
        elif self._parked:
            self._plan_wake()

    def _plan_wake(self) -> None:
        due_ns = self._held.next_due_ns
        if due_ns is not None and self._wake is None and not self._closed:
            delay_s = max(0.001, (due_ns - monotonic_ns()) / NS_PER_S)
            self._wake = asyncio.get_running_loop().call_later(delay_s, self._serve_parked)


def _resolve(future: asyncio.Future[Work | None], work: Work | None) -> bool:
    if future.done():
        return False
    future.set_result(work)
    return True
