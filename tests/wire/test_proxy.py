"""Proxies of the environment: off unless asked for, obeyed when asked for, NO_PROXY included (C54)."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trustme

from distbench.core.records import ErrorKind
from tests.support.scripted import Act, refused_port, scripted_server, stream, whole
from tests.wire.support import BODY, KINDS, Kind, connection, run

GOOD = stream(b'data: {"choices":[{"delta":{"content":"hi"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n')
_VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in _VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@asynccontextmanager
async def tunnel_proxy() -> AsyncIterator[tuple[int, list[bytes]]]:
    """Serve CONNECT on a free port; give the port and the heads that were received."""
    heads: list[bytes] = []

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            writer.write(data)
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        port = int(heads[-1].split()[1].rpartition(b":")[2])
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer), return_exceptions=True)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], heads


@pytest.mark.parametrize("kind", KINDS)
def test_environment_is_ignored_unless_trusted(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy variable on one client does not change what is measured."""
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{refused_port()}")
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{refused_port()}")

    async def go() -> None:
        async with scripted_server([GOOD]) as seen:
            conn = connection(kind, seen.url())
            assert (await conn.exchange(1, BODY)).error_kind is None
            await conn.close()

    run(go())


@pytest.mark.parametrize("kind", KINDS)
def test_plain_proxy_gets_the_whole_url(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trusted http proxy is asked in absolute form, with its own credentials."""

    async def go() -> None:
        async with scripted_server([GOOD]) as proxy:
            monkeypatch.setenv("http_proxy", f"http://user:pa%20ss@127.0.0.1:{proxy.port}")
            conn = connection(kind, "http://model.example:81/v1/chat/completions", trust_env=True)
            exchange = await conn.exchange(1, BODY)
            await conn.close()
            assert exchange.error_kind is None
            request = proxy.requests[0]
            assert request.startswith(b"POST http://model.example:81/v1/chat/completions HTTP/1.1\r\n")
            assert b"\r\nHost: model.example:81\r\n" in request
            assert base64.b64encode(b"user:pa ss") in request

    run(go())


@pytest.mark.parametrize("kind", KINDS)
def test_no_proxy_is_obeyed(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts named in NO_PROXY are reached directly."""
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{refused_port()}")
    monkeypatch.setenv("no_proxy", "example.com,127.0.0.1")

    async def go() -> None:
        async with scripted_server([GOOD]) as seen:
            conn = connection(kind, seen.url(), trust_env=True)
            assert (await conn.exchange(1, BODY)).error_kind is None
            await conn.close()

    run(go())


def test_https_goes_through_a_tunnel(monkeypatch: pytest.MonkeyPatch) -> None:
    """An https target is reached by CONNECT, and TLS is spoken with the target itself."""
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("localhost").configure_cert(context)

    async def go() -> None:
        async with scripted_server([GOOD, GOOD], tls=context) as seen, tunnel_proxy() as (port, heads):
            monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{port}")
            conn = connection("fast", seen.url("https", "localhost"), insecure=True, trust_env=True)
            exchanges = [await conn.exchange(i, BODY) for i in range(2)]
            await conn.close()
            assert [exchange.error_kind for exchange in exchanges] == [None, None]
            assert heads[0].startswith(b"CONNECT localhost:%d HTTP/1.1\r\n" % seen.port)
            assert len(heads) == 1
            assert seen.requests[0].startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")

    run(go())


@pytest.mark.parametrize(
    "answer",
    [[whole(b"no", status="407 Proxy Authentication Required")], [b"SSH-2.0\r\n", Act.CLOSE], [Act.CLOSE]],
)
def test_proxy_that_refuses_is_a_connect_failure(
    answer: list[bytes | Act], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the proxy says against the tunnel is told as the proxy's."""

    async def go() -> None:
        async with scripted_server([answer]) as proxy:
            monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{proxy.port}")
            conn = connection("fast", "https://model.example/v1/chat/completions", trust_env=True)
            exchange = await conn.exchange(1, BODY)
            await conn.close()
            assert exchange.error_kind is ErrorKind.CONNECT
            assert "proxy" in (exchange.error_text or "")

    run(go())


def test_proxy_of_another_kind_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A SOCKS or https proxy is named as not supported, without its credentials."""
    monkeypatch.setenv("all_proxy", "socks5://u:s3cret@127.0.0.1:1080")

    async def go() -> None:
        conn = connection("fast", "http://model.example/v1/chat/completions", trust_env=True)
        exchange = await conn.exchange(1, BODY)
        assert exchange.error_kind is ErrorKind.CONNECT
        assert "s3cret" not in (exchange.error_text or "")

    run(go())
