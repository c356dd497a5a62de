"""
From the bytes of an OpenAI request to what the engine needs, with the errors a vLLM gives (floor F3, pure).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, Literal, overload

import orjson

from distbench.sim.settings import SimSettings
from distbench.sim.tokenizer import Tokenizer

Endpoint = Literal["chat", "completions"]

_STATUS_TYPES = {400: "BadRequestError", 404: "NotFoundError"}


class ApiError(Exception):
    """
    A request that gets an error instead of an answer; never leaves the server.

    Attributes:
        status: HTTP status.
        body: Value of the key "error".
    """

    def __init__(
        self, status: int, message: str, *, param: str | None = None, kind: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = {
            "message": message,
            "type": kind or _STATUS_TYPES[status],
            "param": param,
            "code": status,
        }


@dataclasses.dataclass(slots=True, kw_only=True)
class GenerationRequest:
    """
    A checked request for an answer.

    Attributes:
        endpoint: Which of the two routes.
        prompt: Token ids; >= 1 of them.
        max_tokens: Most tokens of the answer, clamped to the context; >= 1.
        min_tokens: Fewest tokens of an answer that ends by itself.
        ignore_eos: The answer has exactly max_tokens.
        stream: Server-sent events, or one JSON body.
        include_usage: A last event with the usage.
        continuous_usage: Usage in every event.
        seed: The client's own seed; None: not given.
    """

    endpoint: Endpoint
    prompt: list[int]
    max_tokens: int
    min_tokens: int
    ignore_eos: bool
    stream: bool
    include_usage: bool
    continuous_usage: bool
    seed: int | None


def load_json(body: bytes) -> dict[str, Any]:
    """
    Read a JSON object.

    Raises:
        ApiError: 400, in the words of the validation that vLLM runs.
    """
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        # The slow parser accepts lone surrogates, as the real server's does, and tells where it stopped.
        try:
            value = json.loads(body)
        except json.JSONDecodeError as error:
            loc = f"body.{error.pos}"
            raise _validation_error(
                "json_invalid", loc, "JSON decode error", f"{{'error': {error.msg!r}}}"
            ) from None
        except (UnicodeDecodeError, RecursionError) as error:
            raise _validation_error(
                "json_invalid", "body", "JSON decode error", f"{{'error': {str(error)!r}}}"
            ) from None
    if not isinstance(value, dict):
        raise _validation_error(
            "model_attributes_type", "body", "Input should be a valid dictionary or object"
        )
    return value


def parse_generation(
    endpoint: Endpoint, body: Mapping[str, Any], settings: SimSettings, tokenizer: Tokenizer
) -> GenerationRequest:
    """
    Check a request body and tokenize its prompt.

    Raises:
        ApiError: 400 or 404, as vLLM answers them.
    """
    check_model(body, settings)
    if _integer(body, "n", 1) != 1:
        raise ApiError(400, "The simulator makes one choice per request: n must be 1.", param="n")
    stream = _boolean(body, "stream")
    options = body.get("stream_options")
    if options is not None and not isinstance(options, dict):
        raise _validation_error(
            "model_attributes_type", "body.stream_options", "Input should be a valid dictionary"
        )
    if options is not None and not stream:
        raise ApiError(400, "Stream options can only be defined when `stream=True`.", param="stream_options")
    max_tokens = _max_tokens(endpoint, body, settings)
    prompt = (
        _chat_prompt(body, tokenizer) if endpoint == "chat" else _completion_prompt(body, settings, tokenizer)
    )
    limit = _clamp(prompt, max_tokens, settings.max_model_len)
    min_tokens = _integer(body, "min_tokens", 0)
    if min_tokens < 0:
        raise ApiError(400, f"min_tokens must be greater than or equal to 0, got {min_tokens}.")
    if min_tokens > limit:
        raise ApiError(400, f"min_tokens must be less than or equal to max_tokens={limit}, got {min_tokens}.")
    return GenerationRequest(
        endpoint=endpoint,
        prompt=prompt,
        max_tokens=limit,
        min_tokens=min_tokens,
        ignore_eos=_boolean(body, "ignore_eos"),
        stream=stream,
        include_usage=settings.force_include_usage or bool(options and options.get("include_usage")),
        continuous_usage=settings.force_include_usage
        or bool(options and options.get("continuous_usage_stats")),
        seed=_integer(body, "seed", None),
    )


def check_model(body: Mapping[str, Any], settings: SimSettings) -> None:
    """
    Check the model's name; none at all is accepted.

    Raises:
        ApiError: 404.
    """
    model = body.get("model")
    if model is not None and model != settings.model:
        message = f"The model `{model}` does not exist. Valid aliases: {settings.model}."
        raise ApiError(404, message, param="model")


def chat_messages(body: Mapping[str, Any]) -> list[tuple[str, str]]:
    """
    Return the messages of a chat as (role, text).

    Raises:
        ApiError: 400.
    """
    messages = body.get("messages")
    if not isinstance(messages, list):
        raise _missing_or_type(body, "messages", "Input should be a valid list")
    if not messages:
        raise ApiError(400, "The list of messages is empty.", param="messages")
    result = []
    for position, message in enumerate(messages):
        role = message.get("role") if isinstance(message, dict) else None
        if not isinstance(role, str):
            raise _validation_error("missing", f"body.messages.{position}.role", "Field required")
        result.append((role, _content_text(message.get("content"), position)))
    return result


def _chat_prompt(body: Mapping[str, Any], tokenizer: Tokenizer) -> list[int]:
    return tokenizer.encode_chat(chat_messages(body))


def _completion_prompt(body: Mapping[str, Any], settings: SimSettings, tokenizer: Tokenizer) -> list[int]:
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], (str, list)):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return list(tokenizer.encode(prompt))
    if not isinstance(prompt, list):
        raise _missing_or_type(body, "prompt", "Input should be a valid string or a list of token ids")
    if all(type(item) is int for item in prompt):
        if prompt and not (min(prompt) >= 0 and max(prompt) < settings.vocab_size):
            wrong = min(prompt) if min(prompt) < 0 else max(prompt)
            raise ApiError(400, f"Token id {wrong} is out of vocabulary", param="prompt")
        return prompt
    if all(isinstance(item, (str, list)) for item in prompt):
        raise ApiError(400, "The simulator takes one prompt per request.", param="prompt")
    raise _validation_error(
        "list_type", "body.prompt", "Input should be a valid string or a list of token ids"
    )


def _content_text(content: object, position: int) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        texts = []
        for part in content:
            if not (isinstance(part, dict) and isinstance(part.get("text"), str)):
                raise ApiError(
                    400, "The simulator's model takes text only.", param=f"messages.{position}.content"
                )
            texts.append(part["text"])
        return "\n".join(texts)
    raise _validation_error(
        "string_type", f"body.messages.{position}.content", "Input should be a valid string"
    )


def _max_tokens(endpoint: Endpoint, body: Mapping[str, Any], settings: SimSettings) -> int | None:
    """Return the asked length of the answer; None: up to the context."""
    name = "max_tokens"
    if endpoint == "chat" and body.get("max_completion_tokens") is not None:
        name = "max_completion_tokens"
    asked = _integer(body, name, 16 if endpoint == "completions" else None)
    if asked is None:
        return None
    if asked < 1:
        raise ApiError(
            400,
            f"max_tokens must be at least 1, got {asked}. (parameter=max_tokens, value={asked})",
            param="max_tokens",
        )
    if asked > settings.max_model_len:
        message = (
            f"{name}={asked} cannot be greater than max_model_len={settings.max_model_len}. Please request fewer output tokens. "
            f"(parameter={name}, value={asked})"
        )
        raise ApiError(400, message, param=name)
    return asked


def _clamp(prompt: list[int], max_tokens: int | None, context: int) -> int:
    """Return the length of the answer that fits behind the prompt."""
    length = len(prompt)
    if length == 0:
        raise ApiError(400, "The decoder prompt cannot be empty")
    if length > context:
        # The real tokenizer stops one token past the limit, hence "at least".
        found = context + 1
        message = (
            f"This model's maximum context length is {context} tokens. However, your prompt contains at least {found} input "
            "tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input prompt. "
            f"(parameter=input_tokens, value={found})"
        )
        raise ApiError(400, message, param="input_tokens")
    if length == context:
        message = (
            f"The decoder prompt (length {length}) plus the number of requested output tokens (at least 1) is longer than the "
            f"maximum model length of {context}. Make sure that `max_model_len` is no smaller than the number of text tokens "
            "(prompt + requested output tokens)."
        )
        raise ApiError(400, message)
    room = context - length
    return room if max_tokens is None else min(max_tokens, room)


@overload
def _integer(body: Mapping[str, Any], name: str, default: int) -> int: ...
@overload
def _integer(body: Mapping[str, Any], name: str, default: int | None) -> int | None: ...
def _integer(body: Mapping[str, Any], name: str, default: int | None) -> int | None:
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if type(value) is not int:
        raise _validation_error("int_parsing", f"body.{name}", "Input should be a valid integer")
    return value


def _boolean(body: Mapping[str, Any], name: str) -> bool:
    value = body.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise _validation_error("bool_parsing", f"body.{name}", "Input should be a valid boolean")
    return value


def _missing_or_type(body: Mapping[str, Any], name: str, message: str) -> ApiError:
    if body.get(name) is None:
        return _validation_error("missing", f"body.{name}", "Field required")
    return _validation_error("type_error", f"body.{name}", message)


def _validation_error(kind: str, loc: str, message: str, context: str | None = None) -> ApiError:
    tail = f", 'input': '<dict of 0 items>', 'ctx': {context}" if context else ""
    text = f"1 validation error:\n  {{'type': '{kind}', 'loc': '{loc}', 'msg': '{message}'{tail}}}"
    return ApiError(400, text, param=loc, kind="Bad Request")
