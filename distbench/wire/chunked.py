"""
The chunked transfer coding, decoded from any split of its bytes (floor F2).

The decoder alone decides where a body ends; no substring is ever searched for. Its states are one line of framing, the data of a
chunk, the line end behind it, and the trailers.
"""

from __future__ import annotations

import re

_SIZE_LINE = re.compile(rb"([0-9a-fA-F]{1,15})[ \t]*(?:;.*)?\Z", re.DOTALL)
_MAX_LINE_BYTES = 8_192
_MAX_TRAILER_BYTES = 65_536

_SIZE, _DATA, _DATA_END, _TRAILER, _DONE = range(5)

# The size line that one whole chunk of a given total length (line, data and line end) begins with. A read that begins so, comes at
# a chunk's border and ends in CRLF is exactly one chunk: the usual case of a server that writes one event at a time.
_LONGEST_SHORTCUT = 4_096
WHOLE_CHUNK_LINES: dict[int, bytes] = {
    len(line) + size + 2: line
    for size, line in ((size, b"%x\r\n" % size) for size in range(1, _LONGEST_SHORTCUT))
}

_SIZES: dict[bytes, int] = {line[:-2]: int(line, 16) for line in WHOLE_CHUNK_LINES.values()}
_LONGEST_SHORT_SIZE = 3
_LAST = b"0\r\n\r\n"


class ChunkError(Exception):
    """The framing is broken; the text says how."""


class ChunkDecoder:
    """
    Decodes one body.

    Attributes:
        done: The final chunk and the trailers were read to their end.
        surplus: Bytes that followed the end; empty before it.
        at_border: The next byte begins a chunk's size line.
    """

    __slots__ = ("_left", "_line", "_state", "_trailer_bytes", "at_border", "done", "surplus")

    def __init__(self) -> None:
        self._state = _SIZE
        self._line = b""
        self._left = 0
        self._trailer_bytes = 0
        self.done = False
        self.at_border = True
        self.surplus = b""

    def feed(self, data: bytes) -> bytes:
        """
        Take the next bytes from the wire.

        Returns:
            The body bytes in them, those of several chunks joined; empty where there were none.

        Raises:
            ChunkError: the framing is broken. The body bytes before the fault are lost to the caller.
        """
        pieces: list[bytes] = []
        position, end = self._take_whole_chunks(data, pieces) if self.at_border else 0, len(data)
        while position < end and not self.done:
            if self._state == _DATA:
                piece = data[position : position + self._left]
                pieces.append(piece)
                position += len(piece)
                self._left -= len(piece)
                if not self._left:
                    self._state = _DATA_END
            else:
                position = self._take_line(data, position)
        if self.done:
            self.surplus = data[position:]
        self.at_border = self._state == _SIZE and not self._line
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _take_whole_chunks(self, data: bytes, pieces: list[bytes]) -> int:
        """Take the chunks at the beginning that are whole and framed in the usual way, the last one too; return where they end."""
        position = 0
        while True:
            line_end = data.find(b"\r\n", position, position + _LONGEST_SHORT_SIZE + 2)
            size = _SIZES.get(data[position:line_end]) if line_end > 0 else None
            if size is None:
                break
            chunk_end = line_end + 2 + size
            if data[chunk_end : chunk_end + 2] != b"\r\n":
                break
            pieces.append(data[line_end + 2 : chunk_end])
            position = chunk_end + 2
        if data.startswith(_LAST, position):
            self._state = _DONE
            self.done = True
            position += len(_LAST)
        return position

    def _take_line(self, data: bytes, start: int) -> int:
        """Read up to the end of a line of framing, if it is in data; return the position behind what was read."""
        newline = data.find(b"\n", start)
        stop = len(data) if newline < 0 else newline + 1
        line = self._line + data[start:stop]
        if len(line) > _MAX_LINE_BYTES:
            raise ChunkError(f"a line of chunk framing is longer than {_MAX_LINE_BYTES} bytes")
        if newline < 0:
            if self._state == _DATA_END and not b"\r\n".startswith(line):
                raise ChunkError("a chunk is longer than its size says")
            self._line = line
            return stop
        self._line = b""
        self._end_line(line[:-2] if line.endswith(b"\r\n") else line[:-1])
        return stop

    def _end_line(self, line: bytes) -> None:
        if self._state == _SIZE:
            match = _SIZE_LINE.match(line)
            if match is None:
                raise ChunkError(f"not a chunk size: {line[:40]!r}")
            self._left = int(match.group(1), 16)
            self._state = _DATA if self._left else _TRAILER
        elif self._state == _DATA_END:
            if line:
                raise ChunkError("a chunk is longer than its size says")
            self._state = _SIZE
        elif line:
            self._trailer_bytes += len(line)
            if self._trailer_bytes > _MAX_TRAILER_BYTES:
                raise ChunkError(f"trailers are longer than {_MAX_TRAILER_BYTES} bytes")
        else:
            self._state = _DONE
            self.done = True
