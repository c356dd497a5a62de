"""
What is the same in every chunk of an answer (floor F1).

Most chunks of a stream differ from one another in nothing but their text. What surrounds the text of one is its template: a later
piece with the same bytes around another plain text is the same chunk with that text, and need not be kept or decoded to be
counted as a token. That is exact, not a guess: a text without quote, backslash and line end cannot leave its string.
"""

from __future__ import annotations

from distbench.core.openai_chunks import Chunk, NotJson, decode_chunk

Template = tuple[bytes, bytes]
"""
What surrounds the text of a piece of body: all ahead of it; all behind it, with the CRLF of the chunk's end. A later chunk with both
around another text without quote, backslash, CR and LF means the same.
"""

EVENT_ENDS = (b"\n\n", b"\n\r\n")
"""Bytes behind which the next event of a stream begins."""

# Reasoning and answer have one each, and so has each of several models.
_NUM_KNOWN = 4
# Single bytes as numbers: the test for one is much faster than for a string of length one.
_QUOTE, _BACKSLASH, _LF, _CR = b'"\\\n\r'
_MARK = "\x7f~mark~"
_FRAMINGS = tuple((start, end) for start in (b"data: ", b"data:") for end in (b"\n\n", b"\r\n\r\n"))
_OBJECT = (b"data: {", b"data:{")
_ID = b'data: {"id":"'


class TemplateFinder:
    """
    Finds the template of a token's chunk.

    The answers of one server have templates that differ in the id of the answer alone (and each second in the time of creation), so
    the last ones found are tried first: with another id in its place such a one is as right as it was.
    """

    def __init__(self) -> None:
        self._known: list[tuple[bytes, bytes]] = []

    def __call__(self, before: bytes | None, piece: bytes) -> Template | None:
        """
        Return what surrounds the text of a chunk.

        Args:
            before: The piece ahead of it; None where it is the first.
            piece: Bytes of the stream, after transfer decoding.

        Returns:
            What surrounds the text; None where the last event of the piece is not whole, or brings anything but one text.
        """
        begin = piece.rfind(b"\n\n", 0, -2) + 2
        if begin > 1:
            piece = piece[begin:]  # the last of several events
        elif before is not None and not before.endswith(EVENT_ENDS):
            return None
        return (self._by_known(piece) or self._decoded(piece)) if piece.startswith(_OBJECT) else None

    def _by_known(self, piece: bytes) -> Template | None:
        """Return the template by the bytes of one found before."""
        if not piece.startswith(_ID):
            return None
        id_end = piece.find(b'"', len(_ID))
        for shared, suffix in self._known:
            if not piece.startswith(shared, id_end) or not piece.endswith(suffix[:-2]):
                continue
            text = piece[id_end + len(shared) : 2 - len(suffix)]
            if is_plain(text) and b"\\" not in piece[len(_ID) : id_end]:
                return piece[: id_end + len(shared)], suffix
        return None

    def _decoded(self, piece: bytes) -> Template | None:
        """Return the template by decoding the chunk."""
        for start, end in _FRAMINGS:
            if piece.startswith(start) and piece.endswith(end):
                found = _around_text(piece[len(start) : -len(end)])
                if found is not None:
                    prefix, suffix = start + found[0], found[1] + end + b"\r\n"
                    self._remember(prefix, suffix)
                    return prefix, suffix
        return None

    def _remember(self, prefix: bytes, suffix: bytes) -> None:
        """Keep what is not the answer's own."""
        id_end = prefix.find(b'"', len(_ID)) if prefix.startswith(_ID) else -1
        if id_end >= 0 and b"\\" not in prefix[len(_ID) : id_end]:
            self._known = [(prefix[id_end:], suffix), *self._known[: _NUM_KNOWN - 1]]


def is_plain(text: bytes) -> bool:
    """Tell whether a JSON string's content is not empty and cannot end the string, escape or break the line."""
    return bool(text) and not (_QUOTE in text or _BACKSLASH in text or _LF in text or _CR in text)


def _around_text(data: bytes) -> tuple[bytes, bytes] | None:
    """Return the bytes before and behind the text of an event's data; None where it is not one text alone."""
    try:
        found = _only_text(decode_chunk(data))
        if found is None or b"\n" in data or b"\r" in data:
            return None
        field = found[0]
        key = data.find(b'"%b":' % field.encode())
        begin = data.find(b'"', key + len(field) + 3) + 1
        end = data.find(b'"', begin)
        mark = _MARK.encode()
        if key < 0 or not 0 < begin < end or b"\\" in data[begin:end] or mark in data:
            return None
        prefix, suffix = data[:begin], data[end:]
        # The place found by searching is the right one only if putting a mark there changes the text to the mark.
        return (
            (prefix, suffix) if _only_text(decode_chunk(prefix + mark + suffix)) == (field, _MARK) else None
        )
    except NotJson:
        return None


def _only_text(chunk: Chunk) -> tuple[str, str] | None:
    """Return field and text of a chunk that brings one text and nothing else that counts; None for any other."""
    choices = chunk.choices or []
    if chunk.usage is not None or chunk.error is not None or chunk.metrics or len(choices) != 1:
        return None
    choice = choices[0]
    if choice.finish_reason or choice.token_ids is not None or choice.message is not None:
        return None
    texts = [("text", choice.text)]
    if choice.delta is not None:
        delta = choice.delta
        if delta.refusal or delta.tool_calls or delta.function_call:
            return None
        texts += [
            ("content", delta.content),
            ("reasoning_content", delta.reasoning_content),
            ("reasoning", delta.reasoning),
        ]
    given = [(field, text) for field, text in texts if text]
    return given[0] if len(given) == 1 else None
