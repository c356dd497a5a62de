"""
One event of a stream, or one whole answer, decoded to the few fields that are measured (floor F1).

The usual case is decoded straight into these structs; whatever does not fit them (types that differ, lone surrogates, NaN, broken
UTF-8) takes the lenient way, which builds the same structs by hand and takes what it can use.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from distbench.core import lenient_json
from distbench.core.openai_errors import error_in

_MAX_COUNT = 2**31 - 1

# What a column can hold; anything else takes the lenient way and becomes None there.
Count = Annotated[int, msgspec.Meta(ge=0, le=_MAX_COUNT)]


class ToolCall(msgspec.Struct, gc=False):
    """A fragment of a tool call; those of one index are parts of one call."""

    index: int | None = None
    id: str | None = None


class Delta(msgspec.Struct, gc=False):
    """What a chunk adds, or the message of a whole answer."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[ToolCall] | None = None
    function_call: dict[str, Any] | None = None


class Choice(msgspec.Struct, gc=False):
    """One alternative of an answer; chat has delta or message, completions has text."""

    index: int = 0
    delta: Delta | None = None
    message: Delta | None = None
    text: str | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None


class PromptDetails(msgspec.Struct, gc=False):
    """Parts of the prompt tokens."""

    cached_tokens: Count | None = None


class CompletionDetails(msgspec.Struct, gc=False):
    """Parts of the completion tokens."""

    reasoning_tokens: Count | None = None


class Usage(msgspec.Struct, gc=False):
    """The server's own count; None where it does not tell."""

    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: CompletionDetails | None = None


class Chunk(msgspec.Struct, gc=False):
    """
    An event's content.

    Attributes:
        error: Text of the error it bears; a raw JSON value until plain() has looked at it.
        metrics: The server's own times of the request (vLLM's per-request metrics), name to number.
    """

    choices: list[Choice] | None = None
    usage: Usage | None = None
    error: Any = None
    metrics: dict[str, float | None] | None = None


NotJson = lenient_json.NotJson

_decode_typed = msgspec.json.Decoder(Chunk).decode


def decode_chunk(data: bytes) -> Chunk:
    """
    Decode one event.

    Returns:
        The chunk; error is None or its text, not empty.

    Raises:
        NotJson: the data is no JSON object.
    """
    try:
        chunk = _decode_typed(data)
    except (msgspec.DecodeError, RecursionError):
        return _decode_leniently(data)
    if chunk.choices is None or chunk.error is not None:
        return _decode_leniently(data)
    return chunk


def as_count(value: Any) -> int | None:
    """Return a count that a column can hold, or None for anything else (negative, fractional, absurd, no number)."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_COUNT:
        return value
    return None


def _decode_leniently(data: bytes) -> Chunk:
    value = lenient_json.loads(data)
    if not isinstance(value, dict):
        raise NotJson(f"a JSON {type(value).__name__} where an object belongs")
    choices = value.get("choices")
    error = error_in(value)
    if error is not None and not value.get("error") and (choices or value.get("usage")):
        error = None  # a field named like an error's beside real content is none
    metrics = value.get("metrics")
    return Chunk(
        choices=[_choice(each) for each in choices if isinstance(each, dict)]
        if isinstance(choices, list)
        else [],
        usage=_usage(value.get("usage")),
        error=error,
        metrics={str(k): float(v) for k, v in metrics.items() if _is_number(v)}
        if isinstance(metrics, dict)
        else None,
    )


def _choice(value: dict[str, Any]) -> Choice:
    index, ids = value.get("index"), value.get("token_ids")
    return Choice(
        index=index if isinstance(index, int) else 0,
        delta=_delta(value.get("delta")),
        message=_delta(value.get("message")),
        text=_text(value.get("text")),
        finish_reason=_text(value.get("finish_reason")),
        token_ids=[0] * len(ids) if isinstance(ids, list) else None,
    )


def _delta(value: Any) -> Delta | None:
    if not isinstance(value, dict):
        return None
    content, thought = value.get("content"), None
    if isinstance(content, list):
        # Content in parts: thinking parts are reasoning, all others are answer.
        parts = [part for part in content if isinstance(part, dict)]
        thoughts = [part for part in parts if "thinking" in part or "reasoning" in str(part.get("type"))]
        thought = "".join(_part_text(part) for part in thoughts)
        content = "".join(_part_text(part) for part in parts if part not in thoughts)
        content += "".join(part for part in value["content"] if isinstance(part, str))
    calls, call = value.get("tool_calls"), value.get("function_call")
    return Delta(
        content=_text(content),
        reasoning_content=thought or _text(value.get("reasoning_content")),
        reasoning=_text(value.get("reasoning")),
        refusal=_text(value.get("refusal")),
        tool_calls=[_tool_call(each) for each in calls if isinstance(each, dict)]
        if isinstance(calls, list)
        else None,
        function_call=call if isinstance(call, dict) else None,
    )


def _part_text(part: dict[str, Any]) -> str:
    for key in ("text", "thinking", "content", "refusal"):
        inner = part.get(key)
        if isinstance(inner, str):
            return inner
        if isinstance(inner, list):
            return "".join(_part_text(each) for each in inner if isinstance(each, dict))
    return ""


def _tool_call(value: dict[str, Any]) -> ToolCall:
    index = value.get("index")
    return ToolCall(index=index if isinstance(index, int) else None, id=_text(value.get("id")))


def _usage(value: Any) -> Usage | None:
    if not isinstance(value, dict):
        return None
    prompt, completion = value.get("prompt_tokens_details"), value.get("completion_tokens_details")
    return Usage(
        prompt_tokens=as_count(value.get("prompt_tokens")),
        completion_tokens=as_count(value.get("completion_tokens")),
        prompt_tokens_details=PromptDetails(as_count(prompt.get("cached_tokens")))
        if isinstance(prompt, dict)
        else None,
        completion_tokens_details=(
            CompletionDetails(as_count(completion.get("reasoning_tokens")))
            if isinstance(completion, dict)
            else None
        ),
    )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
