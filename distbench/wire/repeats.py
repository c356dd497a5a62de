"""
The repeats in an answer: chunks that differ in their text alone from one before them (floor F2, on the hot path).

A repeat brings nothing but its arrival: its bytes are not kept, and its text is not read. So a long answer costs as much memory as
its stamps, and reading it afterwards as much time as its first and its last chunk.
"""

from __future__ import annotations

from array import array

from distbench.core.openai_template import Template, is_plain
from distbench.wire.chunked import WHOLE_CHUNK_LINES

# No chunk begins with a line that is no size.
_NOTHING = b"nothing\r\n"
# Texts that were found to be plain; most of a language's tokens come again and again.
_plain: set[bytes] = set()
_MAX_PLAIN = 8_192


class Repeats:
    """
    Knows the repeats of one answer.

    Attributes:
        stamps_ns: Arrival of every piece of the answer.
        bytes_left: What the response may still be long.
        worst_lag_ns: Longest delay between a repeat's stamp and its reading; -1 where there was none.
    """

    __slots__ = (
        "_beginning",
        "_beginnings",
        "_suffix",
        "_text_end",
        "bytes_left",
        "stamps_ns",
        "worst_lag_ns",
    )

    def __init__(self, stamps_ns: array[int], max_bytes: int) -> None:
        self.stamps_ns = stamps_ns
        self.bytes_left = max_bytes
        self.worst_lag_ns = -1
        self._beginning = b""
        # Of a repeat of each total length: the chunk's size line, and what it has in common with the others ahead of its text.
        self._beginnings: dict[int, bytes] = {}
        self._suffix: bytes | None = None
        self._text_end = 0

    def expect(self, template: Template | None) -> None:
        """Take as repeats what has this template from now on; None: nothing is one."""
        if template is None:
            self._suffix = None
            return
        beginning, suffix = template
        if beginning != self._beginning:
            self._beginning = beginning
            self._beginnings = {}
        self._suffix, self._text_end = suffix, -len(suffix)

    def take(self, data: bytes, stamp_ns: int, lag_ns: int) -> bool:
        """
        Take a read if it is a repeat: one whole chunk, with nothing else in it.

        Args:
            data: The read, at a chunk's border.
            stamp_ns: Its arrival.
            lag_ns: How late it was read.

        Returns:
            Whether it was one; if not, nothing has changed.
        """
        suffix, size = self._suffix, len(data)
        if suffix is None:
            return False
        beginning = self._beginnings.get(size) or self._begin(size)
        if not (data.startswith(beginning) and data.endswith(suffix) and size <= self.bytes_left):
            return False
        text = data[len(beginning) : self._text_end]
        if text not in _plain and not _is_plain(text):
            return False
        self.stamps_ns.append(stamp_ns)
        self.bytes_left -= size
        if lag_ns > self.worst_lag_ns:
            self.worst_lag_ns = lag_ns
        return True

    def _begin(self, size: int) -> bytes:
        """Return what a repeat of a total length begins with; what nothing begins with where there is none."""
        line = WHOLE_CHUNK_LINES.get(size)
        beginning = _NOTHING if line is None else line + self._beginning
        self._beginnings[size] = beginning
        return beginning


def _is_plain(text: bytes) -> bool:
    """Tell whether a text is plain, and remember it if so."""
    if not is_plain(text):
        return False
    if len(_plain) < _MAX_PLAIN:
        _plain.add(text)
    return True
