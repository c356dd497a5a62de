"""
One answer under way: from the engine's tokens to the connection, with the fault that strikes it (floor F3).

Streams are in streaming.py.
"""

from __future__ import annotations

import abc
import asyncio
import time
from collections.abc import Callable
from typing import Protocol

import orjson

from distbench.sim.answers import Answer
from distbench.sim.api import GenerationRequest
from distbench.sim.faults import Fault
from distbench.sim.http import HttpConnection
from distbench.sim.render import ENGINE_DEAD_MESSAGE, Usage, answer_body
from distbench.sim.scheduler import SimRequest
from distbench.sim.settings import SimSettings
from distbench.sim.truth import TruthRecord
from distbench.units import NS_PER_MS, NS_PER_S

_JSON_TYPE = "application/json"


class ReplyHost(Protocol):
    """What a reply needs of the server."""

    settings: SimSettings
    loop: asyncio.AbstractEventLoop

    def reply_ended(self, reply: Reply) -> None:
        """The response is over; its record tells how."""
        ...

    def abort_request(self, request: SimRequest) -> None:
        """Take a request out of its engine."""
        ...


class Reply(abc.ABC):
    """
    An answer under way.

    Args:
        host: The server.
        connection: Where it goes.
        api: What was asked.
        answer: Its text.
        answer_id: Its id.
        extra_headers: Header lines of its own.
        fault: What strikes it; None: nothing.
        truth: Its record.
    """

    def __init__(
        self,
        host: ReplyHost,
        connection: HttpConnection,
        api: GenerationRequest,
        *,
        answer: Answer,
        answer_id: str,
        extra_headers: str,
        fault: Fault | None,
        truth: TruthRecord,
    ) -> None:
        self.host = host
        self.connection = connection
        self.api = api
        self.answer = answer
        self.answer_id = answer_id
        self.created = int(time.time())
        self.extra_headers = extra_headers
        self.fault = fault
        self.truth = truth
        self.request: SimRequest | None = None
        self.ended = False
        self._timer: asyncio.TimerHandle | None = None

    @abc.abstractmethod
    def start(self) -> None:
        """Send what goes out before the first token."""

    @abc.abstractmethod
    def on_token(self, request: SimRequest) -> None:
        """Take the token that the engine has just made."""

    @abc.abstractmethod
    def fail(self, message: str, kind: str, code: int) -> None:
        """End it with an error of the server."""

    def disconnect(self) -> None:
        """The client is gone: the engine is told."""
        if not self.ended:
            self._end_early(self.truth.status, error="client disconnected")

    def usage(self, request: SimRequest) -> Usage:
        """Return what is told of the tokens."""
        settings = self.host.settings
        cached = request.num_cached_tokens or 0
        created = 0
        if settings.enable_prefix_caching:
            created = max(0, request.num_prompt_tokens // settings.block_size * settings.block_size - cached)
        return Usage(
            prompt_tokens=request.num_prompt_tokens,
            completion_tokens=request.num_output_tokens,
            cached_tokens=cached if settings.enable_prompt_tokens_details else None,
            created_cache_tokens=created,
            metrics=_request_metrics(request) if settings.enable_per_request_metrics else None,
        )

    def _end(self, status: int) -> None:
        """The response was sent whole."""
        self.ended = True
        self._cancel_timer()
        self.truth.status = status
        self.host.reply_ended(self)

    def _end_early(self, status: int | None, *, error: str) -> None:
        """The response will not be whole; the engine stops working on it."""
        self.ended = True
        self._cancel_timer()
        self.truth.status = status
        self.truth.error = error
        if self.request is not None:
            self.truth.aborted = True
            self.host.abort_request(self.request)
        self.host.reply_ended(self)

    def _later(self, seconds: float, callback: Callable[[], None]) -> None:
        self._timer = self.host.loop.call_later(seconds, callback)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _strikes(self, kind: str, request: SimRequest) -> bool:
        """Tell whether the fault of this kind strikes in place of the token just made; answers that end before it end well."""
        fault = self.fault
        return fault is not None and fault.kind == kind and request.num_output_tokens > fault.after_tokens


class WholeReply(Reply):
    """An answer as one JSON body."""

    _hold_until: float  # loop time; set by start()

    def start(self) -> None:
        """Send nothing yet."""
        self._hold_until = 0.0
        if self.fault is not None and self.fault.kind == "slow_headers":
            self._hold_until = self.host.loop.time() + self.fault.seconds

    def on_token(self, request: SimRequest) -> None:
        """Answer once the last token is there."""
        if self.ended or request.finish_reason is None:
            return
        fault = self.fault
        if (
            fault is not None
            and request.num_output_tokens > fault.after_tokens
            and fault.kind in ("reset", "stream_error")
        ):
            if fault.kind == "reset":
                self._end_early(None, error="fault: reset")
                self.connection.reset()
            else:
                self.fail(ENGINE_DEAD_MESSAGE, "InternalServerError", 500)
            return
        if fault is not None and fault.kind == "stall":
            self._hold_until = self.host.loop.time() + fault.seconds
        body = answer_body(
            self.api.endpoint,
            self.answer_id,
            self.created,
            self.host.settings.model,
            self.answer.text(0, request.num_output_tokens),
            request.finish_reason,
            self.usage(request),
        )
        wait_s = self._hold_until - self.host.loop.time()
        if wait_s > 0:
            self._later(wait_s, lambda: self._respond(body))
        else:
            self._respond(body)

    def fail(self, message: str, kind: str, code: int) -> None:
        """Answer with an error."""
        if self.ended:
            return
        body = {"error": {"message": message, "type": kind, "param": None, "code": code}}
        self._end_early(code, error=message)
        self.connection.respond(code, orjson.dumps(body), headers=f"vary: Origin\r\n{self.extra_headers}")

    def _respond(self, body: bytes) -> None:
        headers = f"vary: Origin\r\n{self.extra_headers}"
        self.truth.headers_sent_ns = self.truth.end_sent_ns = time.monotonic_ns()
        if self.fault is not None and self.fault.kind == "truncate":
            head = self.connection.head(
                200, f"content-length: {len(body)}\r\ncontent-type: {_JSON_TYPE}\r\n{headers}"
            )
            self.connection.send(head + body[: len(body) // 2])
            self.truth.end_sent_ns = None
            self._end_early(200, error="fault: truncate")
            self.connection.close()
            return
        # The end is noted first: responding may start the connection's next request.
        self._end(200)
        self.connection.respond(200, body, headers=headers)


def _request_metrics(request: SimRequest) -> dict[str, float]:
    """Return the server's own times of a finished request, in ms as vLLM tells them."""
    first_ns = request.first_token_ns or 0
    last_ns = request.last_token_ns or 0
    scheduled_ns = request.scheduled_ns or 0
    decode_ns = last_ns - first_ns
    num_gaps = request.num_output_tokens - 1
    inference_ns = last_ns - scheduled_ns
    return {
        "time_to_first_token_ms": (first_ns - request.arrival_ns) / NS_PER_MS,
        "generation_time_ms": decode_ns / NS_PER_MS,
        "queue_time_ms": (scheduled_ns - request.arrival_ns) / NS_PER_MS,
        "mean_itl_ms": decode_ns / num_gaps / NS_PER_MS if num_gaps > 0 else 0.0,
        "tokens_per_second": request.num_output_tokens * NS_PER_S / inference_ns if inference_ns > 0 else 0.0,
    }
