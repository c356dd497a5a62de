"""
An answer as a stream of events (floor F3).
"""

from __future__ import annotations

import time

from distbench.sim.render import DONE, ENGINE_DEAD_MESSAGE, EventWriter, error_event
from distbench.sim.replies import Reply
from distbench.sim.scheduler import SimRequest

_SSE_HEADERS = "content-type: text/event-stream; charset=utf-8\r\nvary: Origin\r\n"


class StreamReply(Reply):
    """An answer as server-sent events: one event per HTTP chunk, all of a step in one send."""

    # Set by start().
    _events: EventWriter
    _chunked: bool
    _first_group: int  # tokens of the first event, and of those after it
    _group: int
    _num_told: int  # tokens in events so far
    _held: (
        list[tuple[bytes, int]] | None
    )  # what a fault holds back, with the tokens in it; None: nothing is held
    _last_held: bool  # the end of the response is among it
    _stalled: bool

    def start(self) -> None:
        """Send the head, before there is any token, as the real server does; or hold it back when it is to be slow."""
        api = self.api
        self._events = EventWriter(
            api.endpoint,
            self.answer_id,
            self.created,
            self.host.settings.model,
            prompt_tokens=len(api.prompt),
            continuous_usage=api.continuous_usage,
            include_usage=api.include_usage,
        )
        request = self.connection.request
        self._chunked = request is None or request.chunked_allowed
        if request is not None and not self._chunked:
            request.keep_alive = False
        # The first token goes out alone, later ones in groups of the interval.
        self._first_group, self._group = 1, self.host.settings.stream_interval
        if self.fault is not None and self.fault.kind == "buffering":
            self._first_group = self._group = self.fault.lump_tokens
        self._num_told = 0
        self._held = None
        self._last_held = False
        self._stalled = False
        self.truth.status = 200
        head = self.connection.head(200, f"{_SSE_HEADERS}{self.extra_headers}{self._body_header()}")
        if self.fault is not None and self.fault.kind == "slow_headers":
            self._held = []
            self._later(self.fault.seconds, self._release)
        self._send(head, 0)

    def on_token(self, request: SimRequest) -> None:
        """Send the events that this token completes."""
        if self.ended:
            return
        if self.fault is not None and self._struck(request):
            return
        made = request.num_output_tokens
        finished = request.finish_reason is not None
        group = self._group if self._num_told else self._first_group
        if not finished and made - self._num_told < group:
            return
        events = []
        if self._num_told == 0 and (role := self._events.role()):
            events.append(role)
        text = self.answer.text(self._num_told, made)
        if request.finish_reason is None:
            events.append(self._events.token(text, made))
        else:
            events.append(self._events.last_token(text, made, request.finish_reason))
            if self.api.include_usage:
                events.append(self._events.usage(self.usage(request)))
            events.append(DONE)
        num_new, self._num_told = made - self._num_told, made
        self._send(self._frame(events, last=finished), num_new, last=finished)

    def fail(self, message: str, kind: str, code: int) -> None:
        """End the stream with an error event; its status stays 200."""
        if self.ended:
            return
        data = self._frame([error_event(message, kind, code), DONE], last=True)
        self._held = None
        self.connection.send(data)
        self._end_early(200, error=message)
        self.connection.finish()

    def _struck(self, request: SimRequest) -> bool:
        """Let the fault strike in place of this token; True: the stream is over."""
        if self._strikes("reset", request):
            self._end_early(200, error="fault: reset")
            self.connection.reset()
            return True
        if self._strikes("truncate", request):
            self._end_early(200, error="fault: truncate")
            self.connection.close()
            return True
        if self._strikes("stream_error", request):
            self.fail(ENGINE_DEAD_MESSAGE, "InternalServerError", 500)
            return True
        if self.fault is not None and not self._stalled and self._strikes("stall", request):
            self._stalled = True
            self._held = []
            self._later(self.fault.seconds, self._release)
        return False

    def _body_header(self) -> str:
        return "transfer-encoding: chunked\r\n" if self._chunked else ""

    def _frame(self, events: list[str], *, last: bool) -> bytes:
        """Return events as HTTP chunks, one each."""
        if not self._chunked:
            return "".join(events).encode()
        parts = [f"{len(event):x}\r\n{event}\r\n" for event in events]
        if last:
            parts.append("0\r\n\r\n")
        return "".join(parts).encode()

    def _send(self, data: bytes, num_tokens: int, *, last: bool = False) -> None:
        if self._held is not None:
            self._held.append((data, num_tokens))
            self._last_held = last
            return
        self._stamp(num_tokens, last=last)
        self.connection.send(data)
        if last:
            self._finish()

    def _stamp(self, num_tokens: int, *, last: bool) -> None:
        now_ns = time.monotonic_ns()
        if last:
            self.truth.end_sent_ns = now_ns
        if num_tokens:
            self.truth.token_sent_ns += [now_ns] * num_tokens
        else:
            self.truth.headers_sent_ns = now_ns

    def _release(self) -> None:
        """Send what was held back."""
        self._timer = None
        held, self._held = self._held or [], None
        for _, num_tokens in held:
            self._stamp(num_tokens, last=self._last_held)
        self.connection.send(b"".join([data for data, _ in held]))
        if self._last_held:
            self._finish()

    def _finish(self) -> None:
        self._end(200)
        self.connection.finish()
