"""
Tokens of an answer and their times, chunk by chunk (floor F1).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from distbench.core.answer import Answer
from distbench.core.openai_chunks import Choice, Chunk, Usage
from distbench.core.openai_errors import clean_text
from distbench.core.records import TokenSource

_MAX_CHUNK_TOKENS = 65_535


class TokenTally:
    """
    Gathers what the chunks of one answer tell.

    Attributes:
        chunk_ns: Stamps of the token-bearing chunks so far.
        has_ended: The server told of the end: a finish reason, or usage in an event of its own.
        has_output: Something was generated.
    """

    def __init__(self, keep_text: bool) -> None:
        self.chunk_ns = array("q")
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

    def take_alike(self, stamps_ns: Sequence[int]) -> None:
        """Count chunks that differ in their text alone from one that was taken; see openai_template.py."""
        self.chunk_ns.extend(stamps_ns)

    def take(self, chunk: Chunk, stamp_ns: int) -> None:
        """Count one event of a stream."""
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
            return
        self.chunk_ns.append(stamp_ns)
        self.has_output = True
        if self._first_answer_ns is None and (bears_answer or not bears_thought):
            self._first_answer_ns = stamp_ns
        self._count_chunk(chunk, num_ids)

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
