"""
The bytes of one response, turned into head, body pieces and their times (floor F2). No I/O: the connection feeds it its reads.
"""

from __future__ import annotations

from distbench.core.openai_template import EVENT_ENDS, Template
from distbench.core.records import ErrorKind
from distbench.wire import hot_path
from distbench.wire.base import Exchange, TemplateOf
from distbench.wire.chunked import WHOLE_CHUNK_LINES, ChunkDecoder, ChunkError
from distbench.wire.faults import WireFault
from distbench.wire.head import Framing, Head, HeadError, TlsSpokenError, end_of_head, parse_head

_line_of_whole_chunk = WHOLE_CHUNK_LINES.get
# Pieces in a row of which a template was asked without a repeat behind them: then every chunk differs, and asking is given up.
_MAX_USELESS_LESSONS = 8


class ResponseReader:
    """
    Reads one response into an Exchange.

    Attributes:
        begun: A byte of the response has come.
        fault: What broke the response; None while all is well.
        reusable: The connection may carry another request after this response; set at its end.
        repeats: Takes the reads that need not be fed; ask it first.
    """

    __slots__ = (
        "_at_chunk", "_chunks", "_exchange", "_framing", "_head_bytes", "_keepalive", "_left", "_lessons_left", "_max_bytes",
        "_num_other_pieces", "_num_other_reads", "_num_repeats", "_template", "_template_of", "begun", "fault", "repeats", "reusable",
    )  # fmt: skip

    def __init__(self, exchange: Exchange, max_bytes: int, template_of: TemplateOf | None = None) -> None:
        """
        Begin a response.

        Args:
            exchange: Where to.
            max_bytes: Longest response, framing included.
            template_of: Finds what chunks have in common, so that all but the first need not be kept; None: all are.
        """
        self._exchange = exchange
        self._max_bytes = max_bytes
        self.repeats = hot_path.in_use.repeats(exchange.stamps_ns, max_bytes)
        self._num_other_reads = 0
        self._num_other_pieces = 0
        self._num_repeats = 0
        self._at_chunk = False  # the next byte begins a chunk
        self._template_of = template_of
        self._lessons_left = _MAX_USELESS_LESSONS
        self._template: Template | None = None
        self._chunks: ChunkDecoder | None = None
        self._framing: Framing | None = None
        self._head_bytes = b""
        self._keepalive = False
        self._left = 0
        self.begun = False
        self.fault: WireFault | None = None
        self.reusable = False

    def feed(self, data: bytes, stamp_ns: int) -> bool:
        """
        Take one read that is no repeat.

        Args:
            data: The bytes; not empty.
            stamp_ns: When they arrived.

        Returns:
            True where the response has ended, whole (complete is set) or broken (fault is set); feed no more then.
        """
        size = len(data)
        self.repeats.bytes_left -= size
        if self._at_chunk:
            line = _line_of_whole_chunk(size)
            if line is not None and data.startswith(line) and data.endswith(b"\r\n"):
                # One whole chunk and nothing else: the decoder's state is the same behind it as before.
                self._keep(data[len(line) : -2], stamp_ns)
                return self.repeats.bytes_left < 0 and self._end_too_long()
        self._num_other_reads += 1
        num_pieces = len(self._exchange.body)
        has_ended = (self._feed_head if self._framing is None else self._feed_body)(data, stamp_ns)
        self._num_other_pieces += len(self._exchange.body) - num_pieces
        return has_ended or (self.repeats.bytes_left < 0 and self._end_too_long())

    def tell_repeats(self) -> None:
        """Tell the exchange of the repeats behind the last piece."""
        exchange = self._exchange
        num_repeats = len(exchange.stamps_ns) - len(exchange.body) - self._num_repeats
        if num_repeats:
            exchange.repeats.append((len(exchange.body), num_repeats))
            self._num_repeats += num_repeats

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
        """Number of reads taken: each whole chunk was one, the others were counted."""
        return len(self._exchange.stamps_ns) - self._num_other_pieces + self._num_other_reads

    @property
    def num_bytes(self) -> int:
        """Number of bytes fed, framing included."""
        return self._max_bytes - self.repeats.bytes_left

    def _end_too_long(self) -> bool:
        text = f"the answer is longer than this client's own cap of {self._max_bytes} bytes"
        self.fault = WireFault(ErrorKind.CLIENT_LIMIT, text)
        return True

    def _feed_head(self, data: bytes, stamp_ns: int) -> bool:
        self.begun = True
        exchange = self._exchange
        if exchange.first_byte_ns is None:
            exchange.first_byte_ns = stamp_ns
        self._head_bytes = data = self._head_bytes + data
        try:
            end = end_of_head(data)
            while end >= 0:
                head = parse_head(data[:end])
                self._head_bytes = data = data[end:]
                if head.status >= 200:
                    return self._begin_body(head, stamp_ns)
                if head.status == 101:
                    raise HeadError("the server switched to another protocol")
                # An interim response is no part of the answer; the final one begins with the bytes behind it.
                exchange.first_byte_ns = stamp_ns if data else None
                end = end_of_head(data) if data else -1
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
            self._at_chunk = True
        rest, self._head_bytes = self._head_bytes, b""
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
        self._at_chunk = chunks.at_border
        if piece:
            self._keep(piece, stamp_ns)
        elif not self._at_chunk:
            self.repeats.expect(None)
        return self._end(chunks.surplus) if chunks.done else False

    def _keep(self, piece: bytes, stamp_ns: int) -> None:
        """Keep a piece, and learn from it what those behind it may have in common with it."""
        body = self._exchange.body
        if self._template_of is not None:
            self._learn(self._template_of, body[-1] if body else None, piece)
        body.append(piece)
        self._exchange.stamps_ns.append(stamp_ns)

    def _learn(self, template_of: TemplateOf, before: bytes | None, piece: bytes) -> None:
        body = self._exchange.body
        if len(self._exchange.stamps_ns) > len(body) + self._num_repeats:
            self.tell_repeats()
            self._lessons_left = _MAX_USELESS_LESSONS
            before = None  # a repeat was ahead of it, which is a whole event
        if self._lessons_left:
            self._lessons_left -= 1
            self._template = template_of(before, piece) or self._template
        # Within a chunk or an event nothing is a repeat, whatever it looks like.
        is_at_border = self._at_chunk and piece.endswith(EVENT_ENDS)
        self.repeats.expect(self._template if is_at_border else None)

    def _end(self, surplus: bytes) -> bool:
        # Bytes behind a whole answer spoil the connection, not the answer.
        self._exchange.complete = True
        self.reusable = self._keepalive and not surplus
        return True
