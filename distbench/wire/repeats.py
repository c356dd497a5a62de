"""
The repeats in an answer: chunks that differ in their text alone from one before them (floor F2, on the hot path).

A repeat brings nothing but its arrival: its bytes are not kept, and its text is not read. So a long answer costs as much memory as
its stamps, and reading it afterwards as much time as its first and its last chunk.
"""

from __future__ import annotations

from array import array

from distbench.core.openai_template import Template, is_plain
from distbench.wire.chunked import WHOLE_CHUNK_LINES

# Of a length that no whole chunk has: no text is shorter than nothing.
_NO_CHUNK = b"", -1
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
        "_chunks",
        "_suffix",
        "_template",
        "bytes_left",
        "stamps_ns",
        "worst_lag_ns",
    )

    def __init__(self, stamps_ns: array[int], max_bytes: int) -> None:
        self.stamps_ns = stamps_ns
        self.bytes_left = max_bytes
        self.worst_lag_ns = -1
        self._template: Template = b"", b""
        # Of a repeat of each total length: the chunk's size line with what is ahead of the text behind it, and the text's length.
        self._chunks: dict[int, tuple[bytes, int]] = {}
        self._suffix: bytes | None = None

    def expect(self, template: Template | None) -> None:
        """Take as repeats what has this template from now on; None: nothing is one."""
        if template is None:
            self._suffix = None
            return
        if template != self._template:
            self._template = template
            self._chunks = {}
        self._suffix = template[1]

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
        beginning, text_size = self._chunks.get(size) or self._chunk_of(size)
        # These two cost half of what startswith(), endswith() and a slice do. The length tells whether both were there.
        text = data.removesuffix(suffix).removeprefix(beginning)
        bytes_left = self.bytes_left - size
        if len(text) != text_size or bytes_left < 0 or not (text in _plain or _is_plain(text)):
            return False
        self.stamps_ns.append(stamp_ns)
        self.bytes_left = bytes_left
        if lag_ns > self.worst_lag_ns:
            self.worst_lag_ns = lag_ns
        return True

    def _chunk_of(self, size: int) -> tuple[bytes, int]:
        """Return what a repeat of a total length begins with, and how long its text is: -1 where there is none of that length."""
        line = WHOLE_CHUNK_LINES.get(size)
        chunk = _NO_CHUNK
        if line is not None:
            prefix, suffix = self._template
            beginning = line + prefix
            chunk = beginning, size - len(beginning) - len(suffix)
        self._chunks[size] = chunk
        return chunk


def _is_plain(text: bytes) -> bool:
    """Tell whether a text is plain, and remember it if so."""
    if not is_plain(text):
        return False
    if len(_plain) < _MAX_PLAIN:
        _plain.add(text)
    return True
