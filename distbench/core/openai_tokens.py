"""
Tokens of an answer and their times, chunk by chunk (floor F1).

Most chunks of a stream differ from one another in nothing but their text. Once one has been decoded, its bytes before and behind
the text are kept; a later piece with the same bytes around another plain text is the same chunk with that text and need not be
decoded. That is exact, not a guess: a text without quote, backslash and line end cannot leave its string.
"""

from __future__ import annotations

from collections.abc import Sequence

from distbench.core.answer import Answer
from distbench.core.openai_chunks import Choice, Chunk, NotJson, Usage, decode_chunk
from distbench.core.openai_errors import clean_text
from distbench.core.records import TokenSource

# Single bytes as numbers: the test for one is ten times as fast as for a string of length one.
_QUOTE, _BACKSLASH, _LF, _CR = b'"\\\n\r'
_MARK = "\x7f~mark~"
_MAX_CHUNK_TOKENS = 65_535
# Frames learned in a row without one use of them: then every chunk differs, and learning is given up.
_MAX_USELESS_LESSONS = 4


class TokenTally:
    """
    Gathers what the chunks of one answer tell.

    Attributes:
        chunk_ns: Stamps of the token-bearing chunks so far.
        has_ended: The server told of the end: a finish reason, or usage in an event of its own.
        has_output: Something was generated.
    """

    def __init__(self, keep_text: bool) -> None:
        self.chunk_ns: list[int] = []
        self.has_ended = False
        self.has_output = False
        self._text: list[str] | None = [] if keep_text else None
        self._first_answer_ns: int | None = None
        self._last_ns: int | None = None
        self._finish_reason: str | None = None
        self._usage = Usage()
        self._cached_tokens: int | None = None
        self._reasoning_tokens: int | None = None
        self._metrics: dict[str, float] = {}
        self._calls: set[tuple[int, int | str | None]] = set()
        self._has_legacy_call = False
        self._chunk_tokens: list[int] | None = []
        self._counted_tokens = 0
        self._id_tokens: int | None = 0
        self._prefix: bytes | None = None
        self._suffix = b""
        self._useless_lessons = 0

    def take_run(self, pieces: Sequence[bytes], stamps_ns: Sequence[int], position: int) -> int:
        """
        Take pieces that are like the one learned from, one token-bearing event each.

        Returns:
            Position of the first piece that is not, or the number of pieces.
        """
        prefix, suffix = self._prefix, self._suffix
        if prefix is None:
            return position
        begin, end, shortest = len(prefix), -len(suffix), len(prefix) + len(suffix)
        add = self.chunk_ns.append
        first, num_pieces = position, len(pieces)
        while position < num_pieces:
            piece = pieces[position]
            if len(piece) <= shortest or not (piece.startswith(prefix) and piece.endswith(suffix)):
                break
            text = piece[begin:end]
            if _QUOTE in text or _BACKSLASH in text or _LF in text or _CR in text:
                break
            if self._text is not None:
                self._text.append(text.decode("utf-8", "replace"))
            add(stamps_ns[position])
            position += 1
        if position > first:
            self._useless_lessons = 0
        return position

    def learn(self, piece: bytes, data: bytes, field: str) -> None:
        """
        Keep what surrounds the text of a chunk.

        Args:
            piece: One whole event that came at an event's border.
            data: Its data.
            field: What take() returned for it.
        """
        if self._useless_lessons >= _MAX_USELESS_LESSONS:
            return
        self._useless_lessons += 1
        framing = piece.split(data) if data else []
        if (
            len(framing) != 2
            or framing[0] not in (b"data: ", b"data:")
            or framing[1] not in (b"\n\n", b"\r\n\r\n")
        ):
            return
        key = data.find(b'"%b":' % field.encode())
        begin = data.find(b'"', key + len(field) + 3) + 1
        end = data.find(b'"', begin)
        mark = _MARK.encode()
        if key < 0 or not 0 < begin < end or b"\\" in data[begin:end] or mark in data:
            return
        prefix, suffix = data[:begin], data[end:]
        # The place found by searching is the right one only if putting a mark there changes the text to the mark.
        try:
            marked = decode_chunk(prefix + mark + suffix)
        except NotJson:
            return
        if _only_text(marked) == (field, _MARK):
            self._prefix, self._suffix = framing[0] + prefix, suffix + framing[1]

    def take(self, chunk: Chunk, stamp_ns: int) -> str | None:
        """
        Count one event of a stream.

        Returns:
            The field that held its text, where it held one text and nothing else that counts; else None.
        """
        bears_answer = bears_thought = False
        num_ids = 0
        for choice in chunk.choices or ():
            has_answer, has_thought = self._take_choice(choice)
            bears_answer |= has_answer
            bears_thought |= has_thought
            if choice.token_ids:
                num_ids += len(choice.token_ids)
        if chunk.usage is not None:
            self._take_usage(chunk.usage)
            self.has_ended |= not chunk.choices
        if chunk.metrics:
            self._metrics |= {name: value for name, value in chunk.metrics.items() if value is not None}
        if not (bears_answer or bears_thought or num_ids):
            return None
        self.chunk_ns.append(stamp_ns)
        self.has_output = True
        if self._first_answer_ns is None and (bears_answer or not bears_thought):
            self._first_answer_ns = stamp_ns
        self._count_chunk(chunk, num_ids)
        plain = _only_text(chunk)
        return plain[0] if plain is not None else None

    def take_message(self, chunk: Chunk, last_ns: int | None) -> None:
        """Count a whole answer, whose tokens have no times of their own but the last one's."""
        num_ids = 0
        for choice in chunk.choices or ():
            has_answer, has_thought = self._take_choice(choice)
            self.has_output |= has_answer or has_thought
            num_ids += len(choice.token_ids or ())
        if chunk.usage is not None:
            self._take_usage(chunk.usage)
        if chunk.metrics:
            self._metrics |= {name: value for name, value in chunk.metrics.items() if value is not None}
        self._id_tokens = num_ids or None
        self._chunk_tokens = None
        self._last_ns = last_ns

    def answer(self) -> Answer:
        """Return everything as an Answer, its verdict still open."""
        stamps = self.chunk_ns
        completion_tokens, source = self._completion()
        chunk_tokens = self._chunk_tokens if stamps else None
        if (
            chunk_tokens is not None
            and completion_tokens is not None
            and sum(chunk_tokens) > completion_tokens
        ):
            chunk_tokens = None
        num_calls = len(self._calls) + self._has_legacy_call
        return Answer(
            first_token_ns=stamps[0] if stamps else None,
            first_answer_ns=self._first_answer_ns,
            last_token_ns=stamps[-1] if stamps else self._last_ns,
            finish_reason=self._finish_reason,
            prompt_tokens=self._usage.prompt_tokens,
            completion_tokens=completion_tokens,
            cached_tokens=self._cached_tokens,
            reasoning_tokens=self._reasoning_tokens,
            token_source=source,
            chunk_ns=stamps,
            chunk_tokens=chunk_tokens,
            tool_calls=num_calls,
            server_metrics=self._metrics,
            text=None if self._text is None else "".join(self._text),
        )

    def _completion(self) -> tuple[int | None, TokenSource | None]:
        told = self._usage.completion_tokens
        if told or (told == 0 and not self.has_output):
            return told, TokenSource.USAGE
        if self._id_tokens:
            return self._id_tokens, TokenSource.TOKEN_IDS
        if self.chunk_ns:
            return len(self.chunk_ns), TokenSource.CHUNKS
        return None, None

    def _take_choice(self, choice: Choice) -> tuple[bool, bool]:
        """Return whether a choice brings a part of the answer, and whether it brings reasoning."""
        if choice.finish_reason:
            self._finish_reason = clean_text(choice.finish_reason)
            self.has_ended = True
        delta = choice.delta or choice.message
        if delta is None:
            if choice.text and self._text is not None:
                self._text.append(choice.text)
            return bool(choice.text), False
        thought = delta.reasoning_content or delta.reasoning
        if self._text is not None:
            self._text += [part for part in (thought, delta.content or delta.refusal) if part]
        for position, call in enumerate(delta.tool_calls or ()):
            has_own_key = call.index is not None or call.id
            self._calls.add(
                (
                    choice.index,
                    (call.index if call.index is not None else call.id) if has_own_key else position,
                )
            )
        self._has_legacy_call |= bool(delta.function_call)
        has_answer = bool(
            delta.content or delta.refusal or delta.tool_calls or delta.function_call or choice.text
        )
        return has_answer, bool(thought)

    def _take_usage(self, usage: Usage) -> None:
        known = self._usage
        if usage.prompt_tokens is not None:
            known.prompt_tokens = usage.prompt_tokens
        if usage.completion_tokens is not None:
            known.completion_tokens = usage.completion_tokens
        prompt, completion = usage.prompt_tokens_details, usage.completion_tokens_details
        if prompt is not None and prompt.cached_tokens is not None:
            self._cached_tokens = prompt.cached_tokens
        if completion is not None and completion.reasoning_tokens is not None:
            self._reasoning_tokens = completion.reasoning_tokens

    def _count_chunk(self, chunk: Chunk, num_ids: int) -> None:
        """Note how many tokens a token-bearing chunk holds; one that does not tell makes all unknown."""
        if self._id_tokens is not None:
            self._id_tokens = self._id_tokens + num_ids if num_ids else None
        if self._chunk_tokens is None:
            return
        total = None if chunk.usage is None else chunk.usage.completion_tokens
        count = num_ids or (None if total is None else total - self._counted_tokens)
        if count is None or not 0 < count <= _MAX_CHUNK_TOKENS:
            self._chunk_tokens = None
            return
        self._chunk_tokens.append(count)
        self._counted_tokens += count


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
