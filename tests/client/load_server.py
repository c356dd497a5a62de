"""
A small streaming server for the tests of clients and fleets, on a thread of its own.

It writes each answer by a script that the test gives, and keeps the truth: which requests came, when, on which connection, and
how many were in flight.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

Reply = Callable[["Seen", asyncio.StreamWriter], Awaitable[None]]


@dataclass(slots=True)
class Seen:
    """One request as the server saw it."""

    request_id: int
    body: dict[str, Any]
    peer: str
    began_ns: int
    ended_ns: int = 0
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Truth:
    """Everything the server saw."""

    seen: list[Seen] = field(default_factory=list)
    accepts: int = 0
    in_flight: int = 0
    max_in_flight: int = 0
    aborted: int = 0


def event(text: str) -> bytes:
    """Return one chunk of a chat stream."""
    body = {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def last_events(num_tokens: int) -> bytes:
    """Return the end of a chat stream: finish reason, usage, [DONE]."""
    finish = {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}
    usage = {
        "choices": [],
        "usage": {"prompt_tokens": 5, "completion_tokens": num_tokens, "total_tokens": 5 + num_tokens},
    }
    return (
        b"".join(b"data: " + json.dumps(e).encode() + b"\n\n" for e in (finish, usage)) + b"data: [DONE]\n\n"
    )


def chunk(data: bytes) -> bytes:
    """Frame data as one chunk of a chunked body."""
    return b"%x\r\n%s\r\n" % (len(data), data)


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def stream(tokens: int = 3, delay_s: float = 0.0) -> Reply:
    """Answer with so many tokens, delay_s before each."""

    async def reply(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD)
        for number in range(tokens):
            if delay_s:
                await asyncio.sleep(delay_s)
            if writer.is_closing():  # the client has cut the request
                return
            writer.write(chunk(event(f"t{number} ")))
        writer.write(chunk(last_events(tokens)) + b"0\r\n\r\n")
        await writer.drain()

    return reply


def refuse(status: int, headers: str = "") -> Reply:
    """Answer with an error status and a JSON body."""

    async def reply(seen: Seen, writer: asyncio.StreamWriter) -> None:
        body = b'{"error":{"message":"not now","code":%d}}' % status
        writer.write(
            f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n{headers}content-length: {len(body)}\r\n\r\n".encode()
            + body
        )
        await writer.drain()

    return reply


class LoadServer:
    """Serves on 127.0.0.1, on a port of its own."""

    def __init__(self, reply: Reply | None = None) -> None:
        self.reply = reply or stream()
        self.truth = Truth()
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._started = threading.Event()
        self._stop: asyncio.Event | None = None
        self._transports: list[asyncio.WriteTransport] = []

    @property
    def url(self) -> str:
        """Base URL with /v1."""
        return f"http://127.0.0.1:{self.port}/v1"

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        server = await asyncio.start_server(self._on_connection, "127.0.0.1", 0, backlog=1024)
        self.port = server.sockets[0].getsockname()[1]
        self._started.set()
        await self._stop.wait()
        server.close()
        await asyncio.sleep(0)  # a connection accepted just now gets its task
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        for transport in self._transports:
            transport.abort()
        await asyncio.sleep(0.02)  # aborted transports take a turn of the loop to let go of their sockets

    async def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._transports.append(writer.transport)
        self.truth.accepts += 1
        peer = writer.get_extra_info("peername")
        try:
            while await self._one(reader, writer, f"{peer[0]}:{peer[1]}"):
                pass
        except (asyncio.CancelledError, ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: str) -> bool:
        line = await reader.readline()
        if not line:
            return False
        headers = {}
        while (line := await reader.readline()) not in (b"\r\n", b""):
            name, _, value = line.decode().partition(":")
            headers[name.strip().lower()] = value.strip()
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        truth = self.truth
        seen = Seen(
            request_id=int(headers.get("x-request-id", 0)),
            body=json.loads(body),
            peer=peer,
            began_ns=time.monotonic_ns(),
            headers=headers,
        )
        truth.seen.append(seen)
        truth.in_flight += 1
        truth.max_in_flight = max(truth.max_in_flight, truth.in_flight)
        try:
            await self._answer(seen, writer, reader)
        finally:
            truth.in_flight -= 1
            seen.ended_ns = time.monotonic_ns()
        return not writer.is_closing()

    async def _answer(self, seen: Seen, writer: asyncio.StreamWriter, reader: asyncio.StreamReader) -> None:
        """Answer, but notice at once when the client goes away."""
        answering = asyncio.ensure_future(self.reply(seen, writer))
        try:
            while not answering.done():
                await asyncio.wait({answering}, timeout=0.01)
                if reader.at_eof() and not answering.done():
                    self.truth.aborted += 1
                    writer.close()
                    return
            answering.result()
        finally:
            answering.cancel()
            await asyncio.gather(answering, return_exceptions=True)


@contextlib.contextmanager
def closed_port() -> Iterator[int]:
    """Give a port that refuses connections and that nobody else can take meanwhile."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]
