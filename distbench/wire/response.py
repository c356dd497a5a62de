"""
The bytes of one response, turned into head, body pieces and their times (floor F2). No I/O: the connection feeds it its reads.
"""

from __future__ import annotations

from distbench.core.records import ErrorKind
from distbench.wire.base import Exchange
from distbench.wire.chunked import WHOLE_CHUNK_LINES, ChunkDecoder, ChunkError
from distbench.wire.faults import WireFault
from distbench.wire.head import Framing, Head, HeadError, TlsSpokenError, end_of_head, parse_head

_CR, _LF = b"\r\n"


class ResponseReader:
    """
    Reads one response into an Exchange.

    Attributes:
        begun: A byte of a response has come.
        fault: What broke the response; None while all is well.
        reusable: The connection may carry another request after this response; set at its end.
        at_chunk: The next byte begins a chunk. A read that is one whole chunk leaves the decoder as it was: its reader may then
            append it to body and stamps_ns by itself, and take its length off bytes_left, which must not become negative.
    """

    __slots__ = (
        "_chunks", "_exchange", "_framing", "_head_bytes", "_keepalive", "_left", "_max_bytes",
        "_num_other_pieces", "_num_other_reads", "at_chunk", "begun", "body", "bytes_left", "fault", "reusable", "stamps_ns",
    )  # fmt: skip

    def __init__(self, exchange: Exchange, max_bytes: int) -> None:
        self._exchange = exchange
        self._max_bytes = max_bytes
        self.bytes_left = max_bytes
        self._num_other_reads = 0
        self._num_other_pieces = 0
        self.body = exchange.body
        self.stamps_ns = exchange.stamps_ns
        self.at_chunk = False
        self._chunks: ChunkDecoder | None = None
        self._framing: Framing | None = None
        self._head_bytes = bytearray()
        self._keepalive = False
        self._left = 0
        self.begun = False
        self.fault: WireFault | None = None
        self.reusable = False

    def feed(self, data: bytes, stamp_ns: int) -> bool:
        """
        Take one read.

        Args:
            data: The bytes; not empty.
            stamp_ns: When they arrived.

        Returns:
            True where the response has ended, whole (complete is set) or broken (fault is set); feed no more then.
        """
        size = len(data)
        self.bytes_left -= size
        if self.at_chunk:
            line = WHOLE_CHUNK_LINES.get(size)
            if line is not None and data.startswith(line) and data[-1] == _LF and data[-2] == _CR:
                # One whole chunk and nothing else: the decoder's state is the same behind it as before.
                self.body.append(data[len(line) : -2])
                self.stamps_ns.append(stamp_ns)
                return self.bytes_left < 0 and self._end_too_long()
        self._num_other_reads += 1
        num_pieces = len(self.body)
        has_ended = (self._feed_head if self._framing is None else self._feed_body)(data, stamp_ns)
        self._num_other_pieces += len(self.body) - num_pieces
        return has_ended or (self.bytes_left < 0 and self._end_too_long())

    def end_of_input(self) -> None:
        """Take the end of the connection: it completes a body that runs to it, and cuts any other."""
        if self._framing is Framing.CLOSE:
            self._exchange.complete = True
        elif self._framing is None:
            self.fault = WireFault(
                ErrorKind.TRUNCATED, "the server closed the connection within the response head"
            )
        else:
            self.fault = WireFault(
                ErrorKind.TRUNCATED, "the server closed the connection before the end of the body"
            )

    @property
    def num_reads(self) -> int:
        """Number of times that feed() was called: each whole chunk was one, the others were counted."""
        return len(self.body) - self._num_other_pieces + self._num_other_reads

    @property
    def num_bytes(self) -> int:
        """Number of bytes fed, framing included."""
        return self._max_bytes - self.bytes_left

    def _end_too_long(self) -> bool:
        text = f"the answer is longer than this client's own cap of {self._max_bytes} bytes"
        self.fault = WireFault(ErrorKind.CLIENT_LIMIT, text)
        return True

    def _feed_head(self, data: bytes, stamp_ns: int) -> bool:
        self.begun = True
        exchange = self._exchange
        if exchange.first_byte_ns is None:
            exchange.first_byte_ns = stamp_ns
        self._head_bytes += data
        try:
            end = end_of_head(self._head_bytes)
            while end >= 0:
                head = parse_head(bytes(self._head_bytes[:end]))
                del self._head_bytes[:end]
                if head.status >= 200:
                    return self._begin_body(head, stamp_ns)
                if head.status == 101:
                    raise HeadError("the server switched to another protocol")
                # An interim response is no part of the answer; the final one begins with the bytes behind it.
                exchange.first_byte_ns = stamp_ns if self._head_bytes else None
                end = end_of_head(self._head_bytes) if self._head_bytes else -1
        except HeadError as error:
            kind = ErrorKind.TLS if isinstance(error, TlsSpokenError) else ErrorKind.PROTOCOL
            self.fault = WireFault(kind, str(error))
            return True
        return False

    def _begin_body(self, head: Head, stamp_ns: int) -> bool:
        exchange = self._exchange
        exchange.status = head.status
        exchange.headers = head.headers
        self._framing = head.framing
        self._keepalive = head.keepalive
        self._left = head.length or 0
        if head.framing is Framing.CHUNKED:
            self._chunks = ChunkDecoder()
            self.at_chunk = True
        rest = bytes(self._head_bytes)
        self._head_bytes.clear()
        if head.framing is Framing.NONE or head.length == 0:
            return self._end(rest)
        return self._feed_body(rest, stamp_ns) if rest else False

    def _feed_body(self, data: bytes, stamp_ns: int) -> bool:
        if self._chunks is not None:
            return self._feed_chunks(self._chunks, data, stamp_ns)
        if self._framing is Framing.CLOSE:
            self._keep(data, stamp_ns)
            return False
        piece = data if len(data) <= self._left else data[: self._left]
        self._left -= len(piece)
        self._keep(piece, stamp_ns)
        return self._end(data[len(piece) :]) if not self._left else False

    def _feed_chunks(self, chunks: ChunkDecoder, data: bytes, stamp_ns: int) -> bool:
        try:
            piece = chunks.feed(data)
        except ChunkError as error:
            self.fault = WireFault(ErrorKind.PROTOCOL, f"broken chunked body: {error}")
            return True
        self.at_chunk = chunks.at_border
        if piece:
            self._keep(piece, stamp_ns)
        return self._end(chunks.surplus) if chunks.done else False

    def _keep(self, piece: bytes, stamp_ns: int) -> None:
        self.body.append(piece)
        self.stamps_ns.append(stamp_ns)

    def _end(self, surplus: bytes) -> bool:
        # Bytes behind a whole answer spoil the connection, not the answer.
        self._exchange.complete = True
        self.reusable = self._keepalive and not surplus
        return True
