"""
The bytes of answers, event by event, shaped as vLLM 0.32 writes them (floor F3, pure).

A stream's events differ in the token only, so everything around it is made once per request.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import orjson

from distbench.sim.api import Endpoint

SYSTEM_FINGERPRINT = "distbench-sim"
DONE = "data: [DONE]\n\n"
BUSY_MESSAGE = "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance."
ENGINE_DEAD_MESSAGE = "EngineCore encountered an issue. See stack trace (above) for the root cause."


@dataclasses.dataclass(slots=True, kw_only=True)
class Usage:
    """
    What is told of an answer's tokens.

    Attributes:
        prompt_tokens: Length of the prompt.
        completion_tokens: Tokens made.
        cached_tokens: Prompt tokens from the prefix cache; None: not told.
        created_cache_tokens: Prompt tokens put into the prefix cache; told with the former.
        metrics: The server's own times of the request; None: not told.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None = None
    created_cache_tokens: int = 0
    metrics: dict[str, float] | None = None

    def details(self) -> dict[str, int] | None:
        """Return prompt_tokens_details; None: not told."""
        if self.cached_tokens is None:
            return None
        return {"cached_tokens": self.cached_tokens, "created_cache_tokens": self.created_cache_tokens}


def dumps(value: object) -> str:
    """Return compact JSON."""
    return orjson.dumps(value).decode()


def error_event(message: str, kind: str, code: int) -> str:
    """Return an error inside a stream; vLLM writes it with spaces, unlike all other events."""
    text = dumps(message)
    return f'data: {{"error": {{"message": {text}, "type": "{kind}", "param": null, "code": {code}}}}}\n\n'


class EventWriter:
    """
    Writes the events of one stream.

    Args:
        endpoint: Which of the two formats.
        answer_id: Whole id, prefix included.
        created: Unix time in seconds.
        model: Name of the model.
        prompt_tokens: For usage in every event.
        continuous_usage: Usage in every event.
        include_usage: A usage event will follow the last token.
    """

    __slots__ = ("_chat", "_continuous", "_head", "_include_usage", "_prefix", "_prompt_tokens", "_suffix")

    def __init__(
        self,
        endpoint: Endpoint,
        answer_id: str,
        created: int,
        model: str,
        *,
        prompt_tokens: int,
        continuous_usage: bool,
        include_usage: bool,
    ) -> None:
        self._chat = endpoint == "chat"
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        self._head = f'data: {{"id":{dumps(answer_id)},"object":"{kind}","created":{created},"model":{dumps(model)},"choices":['
        if self._chat:
            self._prefix = self._head + '{"index":0,"delta":{"content":"'
            self._suffix = '"},"logprobs":null,"finish_reason":null,"token_ids":null}]'
        else:
            self._prefix = self._head + '{"index":0,"text":"'
            self._suffix = '","logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,"token_ids":null}]'
        self._prompt_tokens = prompt_tokens
        self._continuous = continuous_usage
        self._include_usage = include_usage

    def role(self) -> str:
        """Return the event that opens a chat; empty for completions."""
        if not self._chat:
            return ""
        choice = '{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]'
        return f'{self._head}{choice}{self._usage(0)},"prompt_token_ids":null,"prompt_text":null}}\n\n'

    def token(self, text: str, completion_tokens: int) -> str:
        """Return the event of one or more tokens; the text is words and spaces, which JSON needs no escapes for."""
        if self._continuous:
            return f"{self._prefix}{text}{self._suffix}{self._usage(completion_tokens)}}}\n\n"
        return f"{self._prefix}{text}{self._suffix}}}\n\n"

    def last_token(self, text: str, completion_tokens: int, finish_reason: str) -> str:
        """Return the event of the last token, which carries the finish reason."""
        reason = f'"finish_reason":"{finish_reason}","stop_reason":null'
        if self._chat:
            rest = f'"}},"logprobs":null,{reason},"token_ids":null}}]'
        else:
            rest = f'","logprobs":null,{reason},"prompt_token_ids":null,"token_ids":null}}]'
        tail = "" if self._include_usage else f',"system_fingerprint":"{SYSTEM_FINGERPRINT}"'
        return f"{self._prefix}{text}{rest}{self._usage(completion_tokens)}{tail}}}\n\n"

    def usage(self, usage: Usage) -> str:
        """Return the event with the usage and no choice."""
        values: dict[str, Any] = {
            "prompt_tokens": usage.prompt_tokens,
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
            "completion_tokens": usage.completion_tokens,
        }
        if (details := usage.details()) is not None:
            values["prompt_tokens_details"] = details
        metrics = "" if usage.metrics is None else f',"metrics":{dumps(usage.metrics)}'
        return f'{self._head}],"usage":{dumps(values)},"system_fingerprint":"{SYSTEM_FINGERPRINT}"{metrics}}}\n\n'

    def _usage(self, completion_tokens: int) -> str:
        if not self._continuous:
            return ""
        prompt, total = self._prompt_tokens, self._prompt_tokens + completion_tokens
        return (
            f',"usage":{{"prompt_tokens":{prompt},"total_tokens":{total},"completion_tokens":{completion_tokens},'
            '"completion_tokens_details":null}'
        )


def answer_body(
    endpoint: Endpoint, answer_id: str, created: int, model: str, text: str, finish_reason: str, usage: Usage
) -> bytes:
    """Return the body of an answer that is not streamed."""
    if endpoint == "chat":
        choice: dict[str, Any] = {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": text,
                "refusal": None,
                "annotations": None,
                "audio": None,
                "function_call": None,
                "reasoning": None,
            },
            "logprobs": None,
            "finish_reason": finish_reason,
            "stop_reason": None,
            "token_ids": None,
            "routed_experts": None,
        }
        prompt_fields: dict[str, Any] = {
            "prompt_logprobs": None,
            "prompt_token_ids": None,
            "prompt_text": None,
        }
    else:
        choice = {
            "index": 0,
            "text": text,
            "logprobs": None,
            "finish_reason": finish_reason,
            "stop_reason": None,
            "token_ids": None,
            "prompt_logprobs": None,
            "prompt_token_ids": None,
            "routed_experts": None,
        }
        prompt_fields = {}
    return orjson.dumps(
        {
            "id": answer_id,
            "object": "chat.completion" if endpoint == "chat" else "text_completion",
            "created": created,
            "model": model,
            "choices": [choice],
            "service_tier": None,
            "system_fingerprint": SYSTEM_FINGERPRINT,
            "usage": {
                "prompt_tokens": usage.prompt_tokens,
                "total_tokens": usage.prompt_tokens + usage.completion_tokens,
                "completion_tokens": usage.completion_tokens,
                "prompt_tokens_details": usage.details(),
                "completion_tokens_details": None,
            },
            **prompt_fields,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": usage.metrics,
        }
    )


def models_body(model: str, max_model_len: int, created: int) -> bytes:
    """Return the body of /v1/models."""
    permission = {
        "id": "modelperm-sim",
        "object": "model_permission",
        "created": created,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
    entry = {
        "id": model,
        "object": "model",
        "created": created,
        "owned_by": "vllm",
        "root": model,
        "parent": None,
        "max_model_len": max_model_len,
        "permission": [permission],
    }
    return orjson.dumps({"object": "list", "data": [entry]})
