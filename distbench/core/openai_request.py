"""
Request bodies of the OpenAI API, as bytes (floor F1).

What is the same for all requests of a level is encoded once; a request adds its prompt and its output length.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from distbench.errors import PlanError

# A value in the extra body could only contradict what is asked per request or decides how the answer is read.
_NOT_EXTRA = {
    "messages": "the prompts come from the dataset",
    "prompt": "the prompts come from the dataset",
    "model": "use --model",
    "stream": "use --no-stream",
}
_LENGTH_FIELDS = ("max_tokens", "max_completion_tokens")


def extra_body_problems(extra_body: Mapping[str, Any]) -> list[str]:
    """Return what forbids to merge these fields into every request, one sentence each; empty where nothing does."""
    problems = [
        f"extra-body: {name!r} cannot be set there; {why}"
        for name, why in _NOT_EXTRA.items()
        if name in extra_body
    ]
    if sum(extra_body.get(name) is not None for name in _LENGTH_FIELDS) > 1:
        problems.append("extra-body: max_tokens and max_completion_tokens exclude each other")
    options = extra_body.get("stream_options")
    if options is not None and not isinstance(options, Mapping):
        problems.append("extra-body: stream_options must be an object")
    try:
        json.dumps(dict(extra_body), allow_nan=False)
    except (TypeError, ValueError) as error:
        problems.append(f"extra-body: cannot be written as JSON: {error}")
    return problems


class RequestEncoder:
    """Builds the bodies of one level's requests, all for one endpoint."""

    def __init__(
        self,
        *,
        model: str | None,
        streaming: bool,
        include_usage: bool = True,
        ignore_eos: bool = False,
        extra_body: Mapping[str, Any] | None = None,
    ) -> None:
        """
        Encode the constant part.

        Args:
            model: None leaves the field out.
            streaming: Ask for server-sent events.
            include_usage: Ask for the usage event; only ever sent with a stream.
            ignore_eos: Ask the server to go on to max_tokens.
            extra_body: Merged last. Its stream_options are merged with ours; a null takes a field of ours out; max_tokens or
                max_completion_tokens in it stands for every request's own. A max_completion_tokens of ``"auto"`` sends each
                request's own length under that name instead of max_tokens.

        Raises:
            PlanError: extra_body_problems() finds some.
        """
        extra = dict(extra_body or {})
        problems = extra_body_problems(extra)
        if problems:
            raise PlanError(problems)
        fields: dict[str, Any] = {} if model is None else {"model": model}
        fields["stream"] = streaming
        if streaming and include_usage:
            fields["stream_options"] = {"include_usage": True}
        if ignore_eos:
            fields["ignore_eos"] = True
        options = extra.get("stream_options")
        if options is not None and "stream_options" in fields:
            extra["stream_options"] = {**fields["stream_options"], **options}
        self._length_field: str | None = "max_tokens"
        if extra.get("max_completion_tokens") == "auto":
            self._length_field = "max_completion_tokens"
            del extra["max_completion_tokens"]
        elif any(name in extra for name in _LENGTH_FIELDS):
            self._length_field = None
            extra = {
                name: value
                for name, value in extra.items()
                if name not in _LENGTH_FIELDS or value is not None
            }
        for name, value in extra.items():
            if value is None and name in fields:
                del fields[name]
            else:
                fields[name] = value
        self._constant = _dumps(fields)[:-1]

    def chat(self, messages: Sequence[Mapping[str, Any]], max_tokens: int) -> bytes:
        """
        Encode a chat request.

        Args:
            messages: As the API takes them: role and content each.
            max_tokens: Output length to ask for, > 0.
        """
        return self._encode(b"messages", messages, max_tokens)

    def completion(self, prompt: str | Sequence[int], max_tokens: int) -> bytes:
        """
        Encode a completions request.

        Args:
            prompt: Text, or token ids.
            max_tokens: Output length to ask for, > 0.
        """
        return self._encode(b"prompt", prompt, max_tokens)

    def _encode(self, name: bytes, prompt: Any, max_tokens: int) -> bytes:
        length = (
            b"" if self._length_field is None else b',"%b":%d' % (self._length_field.encode(), max_tokens)
        )
        return b'%b%b,"%b":%b}' % (self._constant, length, name, _dumps(prompt))


def _dumps(value: Any) -> bytes:
    try:
        return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError:
        # Lone surrogates of a dataset: the standard library writes them as escapes, as they were in its file.
        return json.dumps(value, allow_nan=False, default=list, separators=(",", ":")).encode("ascii")
