"""
The connection that measures: a raw socket on the event loop, its reads stamped by the kernel (floor F2).

The hot path (hot_path.py) reads many connections at a time and hands on what is no repeat. What the bytes mean is read later; only what surrounds an answer's texts is learned from its first chunks, so that the others need not be kept.

States: closed (no link), idle (link, no exchange), busy (link and exchange). In idle the reader stays registered, so that a server
which closes a kept-alive connection is noticed before the next request, if the loop gets to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic_ns
from typing import Any

from distbench.core.records import ErrorKind, Stamp
from distbench.wire.base import Exchange, TemplateOf, WireTarget
from distbench.wire.connect import Dialer, Link
from distbench.wire.deadlines import Deadlines, TokenSeen, any_body
from distbench.wire.faults import WireFault, connection_fault, no_answer_fault
from distbench.wire.repeats import Repeats
from distbench.wire.response import ResponseReader
from distbench.wire.stamps import ANCILLARY_BYTES, ReadClock, process_clocks
from distbench.wire.sweep import READ_BYTES
from distbench.wire.timer import LazyTimer
from distbench.wire.tls import TlsPipe
from distbench.wire.watch import Watch, watch_of

# Reads that a reached limit may still take in, before it is judged by what the kernel had held back.
_LATE_READS = 64


class FastConnection:
    """
    One keep-alive connection on a raw socket; the Protocol and its promises are in wire/base.py.

    It belongs to one task of one event loop. The loop must offer add_reader (uvloop and the Unix loops do); see wire/watch.py.

    Attributes:
        recvmsg: The open socket's.
        repeats: Of the response under way; None between requests.
    """

    __slots__ = (
        "_clock", "_deadlines", "_dialer", "_exchange", "_has_begun", "_link", "_loop", "_max_bytes", "_partial", "_preopened_ns", "_reader",
        "_target", "_template_of", "_timer", "_tls", "_unsent", "_waiter", "_watch", "recvmsg", "repeats",
    )  # fmt: skip
    recvmsg: Callable[[int, int], Any]

    def __init__(
        self,
        target: WireTarget,
        token_seen: TokenSeen | None = None,
        template_of: TemplateOf | None = None,
    ) -> None:
        """
        Prepare; nothing is opened.

        Args:
            target: Where to, and the limits.
            token_seen: Asked when a limit has been reached whether a token is among the body pieces; None: any byte is one.
            template_of: Finds what the chunks of an answer have in common, so that one of them is kept; None: all are.

        Raises:
            PlanError: the URL or a header cannot be used.
        """
        self._target = target
        self._dialer = Dialer(target)
        self._deadlines = Deadlines(target.timeouts, token_seen or any_body)
        self._timer = LazyTimer(self._on_timer)
        self._template_of = template_of
        self._max_bytes = target.max_response_bytes
        self._link: Link | None = None
        self._tls: TlsPipe | None = None
        self._watch: Watch | None = None
        self._preopened_ns: int | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._exchange: Exchange | None = None
        self._partial: Exchange | None = None
        self._reader: ResponseReader | None = None
        self.repeats: Repeats | None = None
        self._waiter: asyncio.Future[WireFault | None] | None = None
        self._unsent = b""
        self._has_begun = False
        self._clock = ReadClock(process_clocks())

    @property
    def connected(self) -> bool:
        """True while a socket is open (the peer may have closed it unseen)."""
        return self._link is not None

    @property
    def received(self) -> tuple[int, int]:
        """Reads and bytes so far of the answer that is being received just now; zeros between requests."""
        exchange, reader = self._exchange, self._reader
        if exchange is None or reader is None:
            return 0, 0
        return exchange.reads + reader.num_reads, exchange.bytes_received + reader.num_bytes

    async def connect(self) -> Exchange | None:
        """Open the connection ahead of the first request; None on success, else the failure."""
        if self._link is not None:
            return None
        exchange = Exchange()
        fault = await self._open(exchange)
        self._preopened_ns = exchange.connect_ns
        return None if fault is None else _failed(exchange, fault)

    async def exchange(self, request_id: int, body: bytes) -> Exchange:
        """Send one POST and read the answer to its end; connects first where needed."""
        exchange = Exchange()
        self._partial = None
        request = self._dialer.head.request(request_id, body)
        try:
            is_reused = self._link is not None
            exchange.connect_ns, self._preopened_ns = self._preopened_ns if is_reused else None, None
            fault = None if is_reused else await self._open(exchange)
            if fault is None:
                fault = await self._attempt(exchange, request)
                if fault is not None and is_reused and self._was_stale(fault):
                    # The server had closed the idle connection: the request was not answered, so it may go once more.
                    exchange.reconnects += 1
                    exchange.end_ns = None
                    fault = await self._open(exchange) or await self._attempt(exchange, request)
        except asyncio.CancelledError:
            self._give_up(exchange)
            raise
        if fault is not None:
            _failed(exchange, fault)
        return exchange

    def partial(self) -> Exchange | None:
        """Return the exchange that was in flight when the task was cancelled, with cut=True; None where there was none."""
        return self._partial

    async def close(self) -> None:
        """Close the socket; a second call does nothing."""
        self._timer.cancel()
        self._drop_link()

    async def _open(self, exchange: Exchange) -> WireFault | None:
        began_ns = monotonic_ns()
        try:
            link = await self._dialer.dial()
        except WireFault as fault:
            return fault
        exchange.connect_ns = monotonic_ns() - began_ns
        self._link = link
        self._tls = link.tls
        self.recvmsg = link.sock.recvmsg
        self._loop = asyncio.get_running_loop()
        self._watch = watch_of(self._loop)
        is_stream = link.tls is None and link.stamped
        self._watch.add(link.sock.fileno(), self._on_readable, self if is_stream else None)
        return None

    async def _attempt(self, exchange: Exchange, request: bytes) -> WireFault | None:
        """Send the request on the open link and wait for the end of the answer; None: it is whole."""
        link, loop = self._link, self._loop
        if link is None or loop is None:  # closed by the peer between opening and sending
            return no_answer_fault(tls=self._dialer.head.is_tls)
        self._reader = ResponseReader(exchange, self._max_bytes, self._template_of)
        self.repeats = self._reader.repeats
        self._has_begun = False
        self._waiter = waiter = loop.create_future()
        self._exchange = exchange
        self._clock.reset()
        exchange.local_address = link.local_address
        exchange.attempts += 1
        output = request if link.tls is None else link.tls.encrypt(request)
        now_ns = monotonic_ns()
        exchange.sent_ns = now_ns
        if exchange.first_sent_ns is None:
            exchange.first_sent_ns = now_ns
        self._send(output)
        look_ns = self._deadlines.next_look_ns(exchange)
        if look_ns is not None:
            self._timer.wake_by(look_ns)
        outcome: WireFault | None = await waiter
        return outcome

    def _was_stale(self, fault: WireFault) -> bool:
        """Tell whether an attempt on an open connection ended without a byte of an answer, by a close or a reset."""
        return fault.kind is ErrorKind.RESET and not self._has_begun

    def _send(self, output: bytes) -> None:
        link, loop = self._link, self._loop
        if link is None or loop is None:
            return
        try:
            sent = link.sock.send(output)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self._on_send_error(error)
            return
        if sent == len(output):
            if self._unsent:
                self._unsent = b""
                loop.remove_writer(link.sock.fileno())
            return
        if not self._unsent:
            loop.add_writer(link.sock.fileno(), self._on_writable)
        self._unsent = output[sent:]

    def _on_writable(self) -> None:
        self._send(self._unsent)

    def _on_send_error(self, error: OSError) -> None:
        """Fail by what the server said before it closed its side, where it said something; else by the error."""
        link, loop = self._link, self._loop
        if self._unsent and link is not None and loop is not None:
            self._unsent = b""
            loop.remove_writer(link.sock.fileno())
        for _ in range(_LATE_READS):
            if self._exchange is None or not self._on_readable():
                break
        if self._exchange is not None:
            self._end(connection_fault(error))

    def _on_readable(self) -> bool:
        """Take one read off the socket; return whether there were bytes. A full buffer's rest comes with the loop's next turn."""
        try:
            data, ancillary, _, _ = self.recvmsg(READ_BYTES, ANCILLARY_BYTES)
        except OSError as error:
            self.take_error(error)
            return False
        return self.take_read(data, ancillary)

    def take_error(self, error: OSError) -> None:
        """Take the failure of a read; one that only says that nothing is there is none."""
        if self._link is not None and not isinstance(error, BlockingIOError | InterruptedError):
            self._end(connection_fault(error))

    def take_read(self, data: bytes, ancillary: list[Any]) -> bool:
        """Take what one read gave, right after it; return whether there were bytes of the response."""
        stamp_ns = self._clock.arrival_ns(ancillary)
        reader = self._reader
        if not data or reader is None:
            self._on_unexpected(data)
            return False
        if len(data) == READ_BYTES and self._watch is not None and self._link is not None:
            self._watch.again(self._link.sock.fileno())
        if self._tls is not None:
            data = self._decrypt(data)
        if data and reader.repeats.take(data, stamp_ns, -1):
            return True
        if data and reader.feed(data, stamp_ns):
            self._end(reader.fault, stamp_ns)
        elif self._tls is not None and self._tls.closed:
            self._on_unexpected(b"")
        return True

    def _decrypt(self, data: bytes) -> bytes:
        """Return the plaintext that a read completes; a broken record ends the exchange."""
        if self._tls is None:
            return data
        try:
            return self._tls.decrypt(data)
        except OSError as error:
            self._end(connection_fault(error))
            return b""

    def _on_unexpected(self, data: bytes) -> None:
        """Take the end of the connection, or bytes that nobody asked for."""
        exchange, reader = self._exchange, self._reader
        if exchange is None or reader is None:
            if data and self._tls is not None and not self._decrypt(data) and not self._tls.closed:
                return  # the TLS layer's own talk, such as session tickets
            self._drop_link()
        elif not reader.begun:
            self._end(no_answer_fault(tls=self._dialer.head.is_tls))
        else:
            reader.end_of_input()
            self._end(
                reader.fault, exchange.stamps_ns[-1] if exchange.complete and exchange.stamps_ns else None
            )

    def _on_timer(self) -> None:
        """Judge the limits, once everything was taken in that had come before this late moment."""
        exchange = self._exchange
        if exchange is None:
            return
        for _ in range(_LATE_READS):
            if not self._on_readable() or self._exchange is not exchange:
                break
        if self._exchange is not exchange:
            return
        fault, look_ns = self._deadlines.judge(exchange, monotonic_ns())
        if fault is not None:
            self._end(fault)
        elif look_ns is not None:
            self._timer.wake_by(look_ns)

    def _end(self, fault: WireFault | None, end_ns: int | None = None) -> None:
        """End the exchange in flight, at a stamp or now, and the connection where it cannot be used again."""
        exchange, reader = self._exchange, self._reader
        if exchange is None or reader is None:
            self._drop_link()
            return
        is_spent = self._unsent or not self._target.keepalive or (self._tls is not None and self._tls.closed)
        if fault is not None or not reader.reusable or is_spent:
            self._drop_link()
        self._close_books(exchange, end_ns)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(fault)

    def _give_up(self, exchange: Exchange) -> None:
        """Keep what had arrived of a cancelled exchange."""
        self._close_books(exchange, None)
        exchange.cut = not exchange.complete
        self._partial = exchange
        self._drop_link()

    def _close_books(self, exchange: Exchange, end_ns: int | None) -> None:
        if exchange.end_ns is None:
            exchange.end_ns = monotonic_ns() if end_ns is None else end_ns
        reader, clock = self._reader, self._clock
        self._exchange = self._reader = self.repeats = None
        if reader is None:
            return
        reader.tell_repeats()
        self._has_begun = reader.begun
        exchange.reads += reader.num_reads
        exchange.bytes_received += reader.num_bytes
        if exchange.reads:
            exchange.stamp = Stamp.USER if clock.is_user else Stamp.KERNEL
            worst_lag_ns = max(clock.worst_lag_ns, reader.repeats.worst_lag_ns)
            exchange.client_lag_ns = None if worst_lag_ns < 0 else worst_lag_ns

    def _drop_link(self) -> None:
        link, loop, watch = self._link, self._loop, self._watch
        if link is None or loop is None or watch is None:
            return
        self._link = self._tls = None
        watch.remove(link.sock.fileno())
        if self._unsent:
            self._unsent = b""
            loop.remove_writer(link.sock.fileno())
        link.sock.close()


def _failed(exchange: Exchange, fault: WireFault) -> Exchange:
    exchange.error_kind = fault.kind
    exchange.error_text = fault.text
    if exchange.end_ns is None:
        exchange.end_ns = monotonic_ns()
    return exchange
