"""Between the plan's words and the server's bytes: bodies made, answers read (floor F3, over core/openai_*)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from distbench.client.messages import RequestSettings
from distbench.core.openai_api import Answer, RequestEncoder, TemplateFinder, read_answer, token_seen
from distbench.core.prompts import Prompt
from distbench.wire.base import Exchange

# Names of vLLM's per-request metrics (in milliseconds) by the columns that hold them (in microseconds).
_SERVER_COLUMNS = {"server_ttft_us": "time_to_first_token_ms", "server_queue_us": "queue_time_ms"}
_US_PER_MS = 1_000


class Codec:
    """
    Makes the bodies and reads the answers of one run's requests.

    Attributes:
        template_of: Finds what the chunks of an answer have in common, for connections (wire/base.py).
    """

    def __init__(self, request: RequestSettings) -> None:
        self._streaming = request.stream
        self.template_of = TemplateFinder()
        self._is_chat = request.endpoint == "chat"
        self._encoder = RequestEncoder(
            model=request.model,
            streaming=request.stream,
            include_usage=request.usage,
            ignore_eos=request.ignore_eos,
            extra_body=request.extra_body,
        )

    def encode(self, prompt: Prompt) -> bytes:
        """Return the JSON body of a request."""
        if self._is_chat:
            messages = [{"role": role, "content": content} for role, content in prompt.messages]
            return self._encoder.chat(messages, prompt.max_tokens)
        text = prompt.token_ids or "\n\n".join(content for _, content in prompt.messages)
        return self._encoder.completion(text, prompt.max_tokens)

    def token_seen(self, pieces: Sequence[bytes]) -> bool:
        """Tell whether the pieces of a body so far hold a token."""
        return token_seen(pieces) if self._streaming else any(pieces)

    def read(self, exchange: Exchange) -> Answer:
        """
        Read what came of an exchange.

        A failure on the wire is the answer's failure, unless the server had told of one before.
        """
        answer = read_answer(
            status=exchange.status,
            headers=exchange.headers,
            body=exchange.body,
            stamps_ns=exchange.stamps_ns,
            complete=exchange.complete,
            streaming=self._streaming,
            repeats=exchange.repeats,
        )
        if answer.error_kind is None and exchange.error_kind is not None:
            answer.error_kind = exchange.error_kind
            answer.error_text = exchange.error_text
        return answer

    def columns(self, answer: Answer) -> dict[str, Any]:
        """Return the columns of a row that the answer tells."""
        is_stream = self._streaming
        columns = {
            "first_token_ns": answer.first_token_ns,
            "first_answer_ns": answer.first_answer_ns,
            "last_token_ns": answer.last_token_ns,
            "finish_reason": answer.finish_reason,
            "prompt_tokens": answer.prompt_tokens,
            "completion_tokens": answer.completion_tokens,
            "cached_tokens": answer.cached_tokens,
            "reasoning_tokens": answer.reasoning_tokens,
            "token_source": answer.token_source,
            "chunk_ns": answer.chunk_ns if is_stream else None,
            "chunk_tokens": answer.chunk_tokens,
            "content_encoding": answer.content_encoding,
        }
        for column, name in _SERVER_COLUMNS.items():
            value = answer.server_metrics.get(name)
            if value is not None:
                columns[column] = round(value * _US_PER_MS)
        return columns
