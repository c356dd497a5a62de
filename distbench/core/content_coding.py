"""
Content codings of answers that came compressed although identity was asked for (floor F1).

They are decoded right and reported: a compressor holds tokens back, so the times of such a stream are those of its flushes.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Protocol

MAX_DECODED_BYTES = 256 * 2**20

_GZIP_WINDOW = 16 + zlib.MAX_WBITS


class CodingError(Exception):
    """The body cannot be decoded; the text says why."""


class DecodedTooLong(Exception):
    """The decoded body exceeds the client's own cap."""


class Decoder(Protocol):
    """Decodes a body piece by piece."""

    def decode(self, piece: bytes) -> bytes:
        """
        Return what these bytes decode to; empty where the compressor still holds it back.

        Raises:
            CodingError: the bytes are not of this coding.
            DecodedTooLong: the cap is exceeded.
        """
        ...


def coding_of(headers: Mapping[str, str]) -> str | None:
    """Return the value of Content-Encoding in lower case; None for identity."""
    value = headers.get("content-encoding")
    if value is None:
        return None
    codings = [part.strip().lower() for part in value.split(",")]
    codings = [coding for coding in codings if coding not in ("", "identity")]
    return ", ".join(codings) or None


def decoder_for(coding: str, max_bytes: int = MAX_DECODED_BYTES) -> Decoder:
    """
    Return a decoder for a coding as coding_of() tells it.

    Raises:
        CodingError: this client cannot decode it (it asked for none).
    """
    if coding in ("gzip", "x-gzip", "deflate"):
        return _Inflater(coding == "deflate", max_bytes)
    raise CodingError(
        f"the answer is compressed with {coding!r}, which was not asked for and cannot be decoded here"
    )


class _Inflater:
    """gzip of any number of members, and deflate with or without the zlib wrapper that the standard asks for."""

    def __init__(self, is_deflate: bool, max_bytes: int) -> None:
        self._is_deflate = is_deflate
        self._left = max_bytes
        self._max_bytes = max_bytes
        self._zlib = zlib.decompressobj(zlib.MAX_WBITS if is_deflate else _GZIP_WINDOW)
        self._held = b""
        self._begun = False

    def decode(self, piece: bytes) -> bytes:
        pieces: list[bytes] = []
        if not self._begun:
            # The wrapper is told by its first two bytes.
            piece = self._held + piece
            self._held = piece if len(piece) < 2 else b""
            if self._held:
                return b""
        while piece:
            decoded = self._inflate(piece)
            self._begun = True
            self._left -= len(decoded)
            if self._left <= 0:
                raise DecodedTooLong(
                    f"the decoded answer is longer than this client's own cap of {self._max_bytes} bytes"
                )
            pieces.append(decoded)
            piece = b""
            if self._zlib.eof and not self._is_deflate:
                # Another member may follow; zeros behind the last one are padding.
                piece = self._zlib.unused_data.lstrip(b"\0")
                self._zlib = zlib.decompressobj(_GZIP_WINDOW)
        return b"".join(pieces)

    def _inflate(self, piece: bytes) -> bytes:
        try:
            return self._zlib.decompress(piece, self._left)
        except zlib.error as error:
            if self._is_deflate and not self._begun:
                # Many servers send raw deflate data under this name.
                self._zlib = zlib.decompressobj(-zlib.MAX_WBITS)
                try:
                    return self._zlib.decompress(piece, self._left)
                except zlib.error:
                    pass
            name = "deflate" if self._is_deflate else "gzip"
            raise CodingError(f"the answer says it is compressed with {name} and is not: {error}") from None
