"""
What a client costs that is written on a common HTTP library and does nothing but read: the baselines of the cost benchmark.

One session, one task a connection, every event decoded as JSON and stamped when it is seen. Writes the floor client's log.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from time import monotonic_ns
from typing import Any, Protocol

from scripts.bench.truth import log_record

_NO_LIMIT = 10**6
_PROMPT = "that with this from have will when your they been were what each than them time"


class Post(Protocol):
    """Sends one request; the body is iterated as it comes."""

    def __call__(
        self, request_id: int, body: dict[str, Any]
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Return a context around the body's pieces."""
        ...


@asynccontextmanager
async def _aiohttp(url: str) -> AsyncIterator[Post]:
    import aiohttp

    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=_NO_LIMIT), timeout=timeout
    ) as session:

        @asynccontextmanager
        async def post(request_id: int, body: dict[str, Any]) -> AsyncIterator[AsyncIterator[bytes]]:
            headers = {"X-Request-Id": str(request_id)}
            async with session.post(f"{url}/v1/chat/completions", json=body, headers=headers) as response:
                yield response.content.iter_any()

        yield post


@asynccontextmanager
async def _httpx(url: str) -> AsyncIterator[Post]:
    import httpx

    limits = httpx.Limits(max_connections=_NO_LIMIT, max_keepalive_connections=_NO_LIMIT)
    async with httpx.AsyncClient(limits=limits, timeout=None, trust_env=False) as client:

        @asynccontextmanager
        async def post(request_id: int, body: dict[str, Any]) -> AsyncIterator[AsyncIterator[bytes]]:
            headers = {"X-Request-Id": str(request_id)}
            async with client.stream(
                "POST", f"{url}/v1/chat/completions", json=body, headers=headers
            ) as response:
                yield response.aiter_bytes()

        yield post


async def _ask(post: Post, request_id: int, tokens: int) -> bytes:
    """Send one request, read it to its end, return its log record."""
    body = {
        "model": "mock-model",
        "messages": [{"role": "user", "content": _PROMPT}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    arrived: list[int] = []
    sent_ns = monotonic_ns()
    pending = b""
    async with post(request_id, body) as pieces:
        async for piece in pieces:
            now_ns = monotonic_ns()
            *events, pending = (pending + piece).split(b"\n\n")
            arrived += [now_ns for event in events if _bears_token(event)]
    return log_record(request_id, sent_ns, arrived)


def _bears_token(event: bytes) -> bool:
    data = event.removeprefix(b"data: ")
    if data == b"[DONE]":
        return False
    choices = json.loads(data)["choices"]
    return bool(choices and choices[0]["delta"].get("content"))


async def _work(post: Post, ids: Iterator[int], tokens: int, records: list[bytes]) -> None:
    for request_id in ids:
        records.append(await _ask(post, request_id, tokens))


async def _run(arguments: argparse.Namespace) -> list[bytes]:
    library = _aiohttp if arguments.library == "aiohttp" else _httpx
    records: list[bytes] = []
    ids = iter(range(1, arguments.requests + 1))
    async with library(arguments.url) as post:
        lanes = itertools.repeat((post, ids, arguments.tokens, records), arguments.connections)
        await asyncio.gather(*(_work(*lane) for lane in lanes))
    return records


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", choices=("aiohttp", "httpx"))
    parser.add_argument("--url", required=True)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--log", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.log.write_bytes(b"".join(asyncio.run(_run(arguments))))


if __name__ == "__main__":
    main()
