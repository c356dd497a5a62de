"""
The truth log: what the server itself did, one JSON line per request (floor F3).

A load generator's figures are checked against it: join on ``request_id``, which is the client's X-Request-Id. Stamps are
CLOCK_MONOTONIC nanoseconds of the machine; a send is stamped just before its system call.
"""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import BinaryIO

import orjson


@dataclasses.dataclass(slots=True, kw_only=True)
class TruthRecord:
    """
    One request as the server saw it.

    Attributes:
        number: Position in the order of arrival, from 1.
        request_id: The client's X-Request-Id; None: it sent none.
        answer_id: The id in the answer; None: it was refused before it got one.
        peer: Address of the client, "host:port".
        endpoint: "chat" or "completions".
        stream: Whether it was streamed.
        engine: Index of the engine; None: it reached none.
        status: HTTP status sent; None: none was.
        arrival_ns: The request was read whole.
        admitted_ns: It was first put into a step; None: never.
        headers_sent_ns: The response's head was sent.
        token_sent_ns: Per token, when the event that carried it was sent; empty where the answer was not streamed.
        end_sent_ns: The last bytes of the response were sent.
        finish_reason: stop, length, abort, error; None: refused.
        aborted: The client went away before the end, or a fault ended it.
        prompt_tokens: Length of the prompt.
        completion_tokens: Tokens made, sent or not.
        cached_tokens: Prompt tokens that the prefix cache gave; None: not admitted.
        num_preemptions: Times it was preempted.
        error: Why it was refused or broken off.
        fault: Kind of the fault that struck it.
    """

    number: int
    request_id: str | None
    peer: str
    endpoint: str
    arrival_ns: int
    answer_id: str | None = None
    stream: bool = False
    engine: int | None = None
    status: int | None = None
    admitted_ns: int | None = None
    headers_sent_ns: int | None = None
    token_sent_ns: list[int] = dataclasses.field(default_factory=list)
    end_sent_ns: int | None = None
    finish_reason: str | None = None
    aborted: bool = False
    prompt_tokens: int | None = None
    completion_tokens: int = 0
    cached_tokens: int | None = None
    num_preemptions: int = 0
    error: str | None = None
    fault: str | None = None


class TruthLog:
    """
    Writes records to a file; they are on it within a quarter of a second.

    Args:
        path: Overwritten.
        loop: Runs the flush timer.

    Raises:
        OSError: The file cannot be opened.
    """

    FLUSH_AFTER_S = 0.25

    def __init__(self, path: str | Path, loop: asyncio.AbstractEventLoop) -> None:
        self._file: BinaryIO = Path(path).open("wb", buffering=1 << 20)  # noqa: SIM115 (lives as long as the server)
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None

    def write(self, record: TruthRecord) -> None:
        """Add a record."""
        self._file.write(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE))
        if self._timer is None:
            self._timer = self._loop.call_later(self.FLUSH_AFTER_S, self._flush)

    def close(self) -> None:
        """Write what is left and close the file."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._file.close()

    def _flush(self) -> None:
        self._timer = None
        self._file.flush()
