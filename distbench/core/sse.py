"""
Server-sent events from any split of their bytes (floor F1; the rules of the WHATWG HTML standard, section 9.2).

An event bears the stamp of the read that completed it. A lone CR ends a line, so the blank line behind an event is over at its CR;
the LF that may follow in a later read is swallowed and delays nothing.
"""

from __future__ import annotations

import re
from typing import NamedTuple

MAX_EVENT_BYTES = 64 * 2**20

_LINE_END = re.compile(rb"\r\n|\n|\r")
_CR = 13
_BOM = b"\xef\xbb\xbf"


class SseEvent(NamedTuple):
    """
    One dispatched event.

    Attributes:
        data: Its data lines joined by LF; not decoded.
        name: Value of its event field; empty where there was none.
        stamp_ns: Stamp of the read that completed it.
    """

    data: bytes
    name: bytes
    stamp_ns: int


class EventTooLong(Exception):
    """An event is longer than the parser's own cap; the text names the cap."""


class SseParser:
    """
    Parses one stream.

    Attributes:
        at_border: Nothing is pending: the next byte begins an event.
        num_comments: Comment lines so far, colon-only pings included.
    """

    __slots__ = (
        "_data",
        "_data_size",
        "_line",
        "_line_size",
        "_max_bytes",
        "_name",
        "_skip_lf",
        "_start",
        "at_border",
        "num_comments",
    )

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_bytes = max_event_bytes
        self._start: bytes | None = b""  # the first bytes, until they can be no byte order mark any more
        self._line: list[bytes] = []
        self._line_size = 0
        self._data: list[bytes] = []
        self._data_size = 0
        self._name = b""
        self._skip_lf = False
        self.at_border = True
        self.num_comments = 0

    def feed(self, piece: bytes, stamp_ns: int) -> list[SseEvent]:
        """
        Take the next bytes of the stream.

        Returns:
            The events that these bytes complete, in order; often none.

        Raises:
            EventTooLong: the pending event exceeds the cap.
        """
        if (
            self.at_border
            and piece.startswith(b"data: ")
            and piece.endswith(b"\n\n")
            and b"\r" not in piece
            and len(piece) <= self._max_bytes
        ):
            parts = piece[6:-2].split(b"\n\ndata: ")
            # Every LF belongs to the separators: the piece is whole events of one data line each.
            if piece.count(b"\n") == 2 * len(parts):
                self._start = None
                return [SseEvent(part, b"", stamp_ns) for part in parts]
        return self.feed_lines(piece, stamp_ns)

    def feed_lines(self, piece: bytes, stamp_ns: int) -> list[SseEvent]:
        """Take the next bytes line by line; same events as feed(), which takes a shorter way where one is at hand."""
        events: list[SseEvent] = []
        piece = self._without_bom(piece)
        start = 0
        if self._skip_lf and piece:
            self._skip_lf = False
            start = 1 if piece[0] == 10 else 0
        for match in _LINE_END.finditer(piece, start):
            line = piece[start : match.start()]
            start = match.end()
            if self._line:
                line = b"".join((*self._line, line))
                self._line.clear()
                self._line_size = 0
            self._take_line(line, stamp_ns, events)
        if start < len(piece):
            self._line.append(piece[start:])
            self._line_size += len(piece) - start
            self._check_size(self._line_size)
        elif piece.endswith(b"\r"):
            self._skip_lf = True
        self.at_border = not (self._line or self._data or self._name or self._skip_lf or self._start)
        return events

    def pending(self, stamp_ns: int) -> SseEvent | None:
        """
        Return the event that the end of the stream cut off before its blank line, or None.

        The standard drops such an event. Some servers leave the last blank line out, so the caller may look at it.
        """
        events: list[SseEvent] = []
        line = b"".join(self._line)
        self._line.clear()
        if line:
            self._take_line(line, stamp_ns, events)
        self._take_line(b"", stamp_ns, events)
        return events[0] if events else None

    def _without_bom(self, piece: bytes) -> bytes:
        """Hold the first bytes of the stream back until it is known whether they are a byte order mark; drop it."""
        if self._start is None:
            return piece
        piece = self._start + piece
        if len(piece) < len(_BOM) and _BOM.startswith(piece):
            self._start = piece
            return b""
        self._start = None
        return piece.removeprefix(_BOM)

    def _take_line(self, line: bytes, stamp_ns: int, events: list[SseEvent]) -> None:
        if not line:
            if self._data:
                data = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
                events.append(SseEvent(data, self._name, stamp_ns))
                self._data.clear()
                self._data_size = 0
            self._name = b""
            return
        self._check_size(len(line))
        field, _, value = line.partition(b":")
        if field == b"data":
            value = value.removeprefix(b" ")
            self._data.append(value)
            self._data_size += len(value)
        elif field == b"event":
            self._name = value.removeprefix(b" ")
        elif not field:
            self.num_comments += 1
        # id and retry serve reconnecting, which a measured stream never does; other fields mean nothing.

    def _check_size(self, line_size: int) -> None:
        if self._data_size + line_size > self._max_bytes:
            raise EventTooLong(f"an event is longer than this client's own cap of {self._max_bytes} bytes")
