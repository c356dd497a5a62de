"""
An answer, read: what the bytes of one response meant (floor F1).
"""

from __future__ import annotations

import dataclasses
from array import array

from distbench.core.records import ErrorKind, TokenSource


@dataclasses.dataclass(slots=True, kw_only=True)
class Answer:
    """
    One answer, read. The attributes named like columns of the records mean what they mean there.

    Attributes:
        error_kind: Why the answer is a failure; None where it is none, or where it was cut before the server told of one.
        error_text: At most MAX_ERROR_TEXT characters; None exactly where error_kind is.
        first_token_ns: Stamp of the first token-bearing chunk; None for an answer that was not streamed.
        last_token_ns: Stamp of the last token-bearing chunk; of the last piece of body where the answer was not streamed.
        completion_tokens: Token count with its source; None where nothing told of any.
        chunk_ns: Stamp of each token-bearing chunk, ascending as they came; int64.
        chunk_tokens: Tokens of each of these chunks; None where the server does not tell them all.
        tool_calls: Number of tool calls.
        server_metrics: What the server itself measured of this request, in its own names and units.
        content_encoding: The compression that came unasked; None is none. The times of such a stream are those of its flushes.
        text: All text of the answer, reasoning first; None unless it was asked to be kept.
    """

    error_kind: ErrorKind | None = None
    error_text: str | None = None
    first_token_ns: int | None = None
    first_answer_ns: int | None = None
    last_token_ns: int | None = None
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    token_source: TokenSource | None = None
    chunk_ns: array[int] = dataclasses.field(default_factory=lambda: array("q"))
    chunk_tokens: list[int] | None = None
    tool_calls: int = 0
    server_metrics: dict[str, float] = dataclasses.field(default_factory=dict)
    content_encoding: str | None = None
    text: str | None = None
