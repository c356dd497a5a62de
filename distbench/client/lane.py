"""
One connection's work in a level: take, send, hand over, next (floor F3).

Between the end of an answer and the next request stands nothing but taking it from the source: what the answer means is read later
(finishing.py).
"""

from __future__ import annotations

import asyncio
import dataclasses
from time import monotonic_ns

from distbench.client.counters import LevelCounters
from distbench.client.finishing import Finisher
from distbench.client.retry import carry_over, is_retryable, retry_delay_s
from distbench.client.work import Source, Work
from distbench.core.records import ErrorKind, Phase
from distbench.wire.base import Connection, Exchange

# A target that refuses connections would otherwise be tried, and a plan's requests be spent, as fast as the client can.
_NO_CONNECTION = frozenset(
    (ErrorKind.CONNECT, ErrorKind.TLS, ErrorKind.CLIENT_FD_LIMIT, ErrorKind.CLIENT_PORTS)
)
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 0.2


@dataclasses.dataclass(frozen=True, slots=True)
class LaneShared:
    """What all lanes of a level share."""

    source: Source
    counters: LevelCounters
    finisher: Finisher
    retries: int


class Lane:
    """
    A connection that works through requests, one at a time.

    Attributes:
        number: Place among this client's lanes; connection: index over all clients; target: index of its target.
    """

    __slots__ = ("_idle_since_ns", "_pause_s", "_shared", "connection", "number", "target", "wire")

    def __init__(
        self, number: int, connection: int, target: int, wire: Connection, shared: LaneShared
    ) -> None:
        self.number = number
        self.connection = connection
        self.target = target
        self.wire = wire
        self._shared = shared
        self._idle_since_ns: int | None = None
        self._pause_s = 0.0

    async def run(self) -> None:
        """Work until the source has nothing more; when cancelled, hand over what was in flight as cut."""
        source = self._shared.source
        while True:
            work = source.take(self.number)
            if work is None:
                self._idle_since_ns = None
                work = await source.wait(self.number)
                if work is None:
                    return
            await self._serve(work)
            if self._pause_s:
                self._idle_since_ns = None
                await asyncio.sleep(self._pause_s)

    def received(self) -> tuple[int, int]:
        """Return reads and bytes so far of the answer under way; zeros where there is none, or the connection does not tell."""
        return getattr(self.wire, "received", (0, 0))

    async def _serve(self, work: Work) -> None:
        shared = self._shared
        counters = shared.counters
        counters.taken += 1
        if work.phase is Phase.MEASURED:
            counters.sent += 1
        exchange = await self._exchange(work, None)
        for attempt in range(shared.retries):
            if not is_retryable(exchange):
                break
            await self._wait_for_retry(work, exchange, attempt)
            exchange = await self._exchange(work, exchange)
        self._finish(work, exchange, cut=False)
        self._pause_s = self._next_pause_s(exchange)

    async def _exchange(self, work: Work, earlier: Exchange | None) -> Exchange:
        """Send once; carries over from an earlier attempt what belongs to the whole request."""
        in_flight = self._shared.counters.in_flight
        began_ns = monotonic_ns()
        in_flight.begin(began_ns)
        try:
            exchange = await self.wire.exchange(work.request_id, work.body)
        except asyncio.CancelledError:
            partial = self.wire.partial() or Exchange(cut=True)
            in_flight.end(began_ns, partial.sent_ns, partial.end_ns)
            carry_over(earlier, partial)
            # It may have become complete in the very moment of the cut.
            self._finish(work, partial, cut=not partial.complete)
            raise
        except BaseException:
            in_flight.end(began_ns, None, None)
            raise
        in_flight.end(began_ns, exchange.sent_ns, exchange.end_ns)
        carry_over(earlier, exchange)
        return exchange

    async def _wait_for_retry(self, work: Work, exchange: Exchange, attempt: int) -> None:
        """Wait as the server asks; that time is not in flight."""
        self._idle_since_ns = None
        try:
            await asyncio.sleep(retry_delay_s(exchange, attempt))
        except asyncio.CancelledError:
            self._finish(work, exchange, cut=True)
            raise

    def _finish(self, work: Work, exchange: Exchange, *, cut: bool) -> None:
        shared = self._shared
        self._count(work, exchange, shared.counters)
        self._idle_since_ns = exchange.end_ns
        shared.finisher.add(work, exchange, self.connection, self.target, cut=cut)
        shared.source.done(work)

    def _count(self, work: Work, exchange: Exchange, counters: LevelCounters) -> None:
        counters.exchanges += 1
        counters.reads += exchange.reads
        counters.bytes_received += exchange.bytes_received
        if exchange.client_lag_ns is not None:
            counters.lags_ns.append(exchange.client_lag_ns)
        sent_ns = exchange.first_sent_ns
        if sent_ns is None:
            return
        if counters.first_sent_ns is None or sent_ns < counters.first_sent_ns:
            counters.first_sent_ns = sent_ns
        if work.scheduled_ns is not None:
            counters.send_lags_ns.append(sent_ns - work.scheduled_ns)
        elif self._idle_since_ns is not None and not exchange.reconnects:
            # Time to connect anew (without keep-alive) is the network's and the server's.
            turnaround_ns = max(0, sent_ns - self._idle_since_ns - (exchange.connect_ns or 0))
            counters.turnarounds_ns.append(turnaround_ns)

    def _next_pause_s(self, exchange: Exchange) -> float:
        if exchange.error_kind not in _NO_CONNECTION:
            return 0.0
        return min(_LONGEST_PAUSE_S, self._pause_s * 2 or _FIRST_PAUSE_S)
