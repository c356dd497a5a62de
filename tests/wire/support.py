"""What the tests of the wire share: running on the loop that the product uses, and asking one scripted server."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import uvloop

from distbench.core.openai_api import Answer, read_answer, token_seen
from distbench.wire import stamps
from distbench.wire.base import Connection, Exchange, TemplateOf, Timeouts, WireTarget
from distbench.wire.factory import open_connection
from tests.support.scripted import Response, Seen, scripted_server

Kind = Literal["fast", "httpx"]
KINDS: tuple[Kind, ...] = ("fast", "httpx")
BODY = b'{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":4,"stream":true}'
DATA = Path(__file__).parent.parent / "data" / "wire"
T = TypeVar("T")


def run(coroutine: Coroutine[Any, Any, T], limit_s: float = 20.0) -> T:
    """Run on a fresh uvloop, with a limit: a test that hangs must say so."""

    async def limited() -> T:
        return await asyncio.wait_for(coroutine, limit_s)

    result: T = uvloop.run(limited())
    return result


def connection(kind: Kind, url: str, template_of: TemplateOf | None = None, **settings: Any) -> Connection:
    """Return a connection that tells tokens by the API's rules."""
    settings.setdefault("timeouts", Timeouts(connect_s=5.0))
    return open_connection(kind, WireTarget(url=url, **settings), token_seen, template_of)


async def ask(kind: Kind, *script: Response, times: int = 1, **settings: Any) -> tuple[list[Exchange], Seen]:
    """Send requests one after the other to a server whose every connection acts this script; return what came back."""
    async with scripted_server(script) as seen:
        conn = connection(kind, seen.url(), **settings)
        try:
            return [await conn.exchange(1000 + i, BODY) for i in range(times)], seen
        finally:
            await conn.close()


def ask_once(kind: Kind, response: Response, **settings: Any) -> Exchange:
    """Send one request and return its exchange."""
    exchanges, _ = run(ask(kind, response, **settings))
    return exchanges[0]


def stamped_pair() -> tuple[socket.socket, socket.socket]:
    """Return the two ends of a TCP connection: ours, which does not block and whose reads bear the kernel's stamps, and the peer's."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        peer, _ = listener.accept()
    ours.setblocking(False)
    assert stamps.enable(ours)
    return ours, peer


def answer_of(exchange: Exchange, *, streaming: bool = True) -> Answer:
    """Read the answer in an exchange."""
    return read_answer(
        status=exchange.status,
        headers=exchange.headers,
        body=exchange.body,
        stamps_ns=exchange.stamps_ns,
        complete=exchange.complete,
        streaming=streaming,
        repeats=exchange.repeats,
        keep_text=True,
    )


def capture(name: str) -> bytes:
    """Return the recorded bytes of a real server's response."""
    return (DATA / f"{name}.response").read_bytes()


def split_at(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    """Return the data cut at these positions, empty pieces left out."""
    bounds = [0, *sorted(cuts), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(bounds) if a < b]
