"""TLS: certificates, where it is spoken and where not, and that its reads are stamped like all others."""

from __future__ import annotations

import contextlib
import ssl
from pathlib import Path
from typing import Any

import pytest
import trustme

from distbench.core.records import ErrorKind, Stamp
from distbench.wire.base import Exchange, Timeouts
from distbench.wire.tls import TlsPipe, client_context
from tests.support.scripted import Act, byte_by_byte, head, scripted_server, stream, whole
from tests.wire.support import BODY, KINDS, Kind, answer_of, connection, run

EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"hi"}}]}\n\n'
END = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
GOOD = stream(EVENT, END)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    """A certificate authority that no system trusts."""
    return trustme.CA()


@pytest.fixture(scope="module")
def server_context(authority: trustme.CA) -> ssl.SSLContext:
    """The server's side, certified for 127.0.0.1 and localhost."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1", "localhost").configure_cert(context)
    return context


@pytest.fixture(scope="module")
def ca_file(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The authority's root as a file."""
    path = tmp_path_factory.mktemp("ca") / "ca.pem"
    authority.cert_pem.write_to_path(str(path))
    return str(path)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["ca_file", "insecure"])
def test_trusted_server_is_read_on_one_connection(
    kind: Kind, how: str, server_context: ssl.SSLContext, ca_file: str
) -> None:
    """--ca-file and --insecure both work; the handshake is paid once and told apart (C46, C52)."""
    settings = {"ca_file": ca_file} if how == "ca_file" else {"insecure": True}

    async def go() -> None:
        plain = [step for step in GOOD if isinstance(step, bytes)]
        async with scripted_server([GOOD, byte_by_byte(*plain), GOOD], tls=server_context) as seen:
            conn = connection(kind, seen.url("https", "localhost"), **settings)
            exchanges = [await conn.exchange(i, BODY) for i in range(3)]
            await conn.close()
            assert seen.accepts == 1
            assert seen.requests[0].endswith(BODY)
        for exchange in exchanges:
            assert (exchange.error_kind, b"".join(exchange.body)) == (None, EVENT + END)
            assert answer_of(exchange).completion_tokens == 1
            assert exchange.stamp is (Stamp.KERNEL if kind == "fast" else Stamp.USER)
        assert [exchange.connect_ns is not None for exchange in exchanges] == [True, False, False]

    run(go())


def failed(kind: Kind, url: str, **settings: Any) -> Exchange:
    """Return the exchange of one request."""

    async def go() -> Exchange:
        conn = connection(kind, url, **settings)
        try:
            return await conn.exchange(1, BODY)
        finally:
            await conn.close()

    return run(go())


@pytest.mark.parametrize("kind", KINDS)
def test_untrusted_certificate_fails_with_its_reason(kind: Kind, server_context: ssl.SSLContext) -> None:
    """A chain to an unknown root fails at once, and the text says why and what to do (C52)."""

    async def go() -> None:
        async with scripted_server([GOOD], tls=server_context) as seen:
            conn = connection(kind, seen.url("https", "localhost"))
            exchange = await conn.exchange(1, BODY)
            await conn.close()
            assert (exchange.error_kind, exchange.attempts) == (ErrorKind.TLS, 0)
            assert "unable to get local issuer certificate" in (exchange.error_text or "")
            assert "--ca-file" in (exchange.error_text or "")

    run(go())


@pytest.mark.parametrize("kind", KINDS)
def test_certificate_for_another_name_fails(kind: Kind, ca_file: str, authority: trustme.CA) -> None:
    """The certificate must be for the name that was asked for."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("other.example").configure_cert(context)

    async def go() -> None:
        async with scripted_server([GOOD], tls=context) as seen:
            conn = connection(kind, seen.url("https", "localhost"), ca_file=ca_file)
            exchange = await conn.exchange(1, BODY)
            await conn.close()
            assert exchange.error_kind is ErrorKind.TLS
            assert "Hostname mismatch" in (exchange.error_text or "")

    run(go())


@pytest.mark.parametrize("kind", KINDS)
def test_https_to_a_plain_port_is_told(kind: Kind) -> None:
    """TLS towards a server that speaks plain http says to use http://."""

    async def go() -> None:
        answer = whole(b"bad", "Connection: close", status="400 Bad Request")
        async with scripted_server([[answer, 0.2, Act.CLOSE]], read_requests=False) as seen:
            conn = connection(kind, seen.url("https"), insecure=True)
            exchange = await conn.exchange(1, BODY)
            await conn.close()
            assert exchange.error_kind is ErrorKind.TLS
            assert "does not speak TLS; use http://" in (exchange.error_text or "")

    run(go())


def test_plain_http_to_a_tls_port_is_told(server_context: ssl.SSLContext) -> None:
    """A request in the clear to a TLS port says that https:// may be meant, with or without an alert."""

    async def go() -> None:
        async with scripted_server([GOOD], tls=server_context) as seen:
            conn = connection("fast", seen.url())
            exchange = await conn.exchange(1, BODY)
            assert exchange.error_kind in (ErrorKind.TLS, ErrorKind.RESET)
            assert "https://" in (exchange.error_text or "")
            await conn.close()
        alert = b"\x15\x03\x01\x00\x02\x02\x46"
        async with scripted_server([[alert, Act.CLOSE]]) as seen:
            conn = connection("fast", seen.url())
            exchange = await conn.exchange(1, BODY)
            assert (exchange.error_kind, exchange.complete) == (ErrorKind.TLS, False)
            assert "https://" in (exchange.error_text or "")
            await conn.close()

    run(go())


@pytest.mark.parametrize("kind", KINDS)
def test_ca_file_that_cannot_be_read_is_told(kind: Kind, tmp_path: Path) -> None:
    """A missing or empty file of roots is a failure with a text, not a traceback."""
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    for path in (str(tmp_path / "none.pem"), str(empty)):
        exchange = failed(kind, "https://127.0.0.1:9/v1/chat/completions", ca_file=path)
        assert exchange.error_kind in (ErrorKind.TLS, ErrorKind.CONNECT)
        assert exchange.error_text


def test_stale_tls_connection_is_replaced(server_context: ssl.SSLContext, ca_file: str) -> None:
    """The alert with which a server closes an idle TLS connection is no byte of an answer (C40)."""

    async def go() -> None:
        async with scripted_server([GOOD, [Act.CLOSE]], [GOOD], tls=server_context) as seen:
            conn = connection("fast", seen.url("https", "localhost"), ca_file=ca_file)
            await conn.exchange(1, BODY)
            second = await conn.exchange(2, BODY)
            await conn.close()
            assert (second.error_kind, second.attempts, second.reconnects) == (None, 2, 1)

    run(go())


def test_close_ends_a_body_that_runs_to_it(server_context: ssl.SSLContext, ca_file: str) -> None:
    """TLS's own end of the data is the end of a body without length."""

    async def go() -> None:
        async with scripted_server([[head(), EVENT, END, Act.CLOSE]], tls=server_context) as seen:
            conn = connection("fast", seen.url("https", "localhost"), ca_file=ca_file)
            exchange = await conn.exchange(1, BODY)
            await conn.close()
            assert (exchange.error_kind, exchange.complete, b"".join(exchange.body)) == (
                None,
                True,
                EVENT + END,
            )

    run(go())


def test_handshake_that_never_ends_reaches_the_connect_limit() -> None:
    """The connect limit covers the TLS handshake."""

    async def go() -> None:
        async with scripted_server([[Act.HANG]], read_requests=False) as seen:
            conn = connection("fast", seen.url("https"), insecure=True, timeouts=Timeouts(connect_s=0.1))
            exchange = await conn.exchange(1, BODY)
            await conn.close()
            assert exchange.error_kind is ErrorKind.CONNECT_TIMEOUT

    run(go())


def test_pipe_needs_no_exception_for_whole_records(
    authority: trustme.CA, server_context: ssl.SSLContext
) -> None:
    """Plaintext comes with the bytes that complete its record, and not before."""
    context = client_context(None, True)
    client = TlsPipe(context, "localhost")
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = server_context.wrap_bio(to_server, to_client, server_side=True)
    done, received = False, b""
    while not done:
        done, output = client.handshake_step(received)
        to_server.write(output)
        with contextlib.suppress(ssl.SSLWantReadError):
            server.do_handshake()
        received = to_client.read()
    assert client.decrypt(received) == b""  # session tickets
    server.write(b"first")
    server.write(b"second")
    record = to_client.read()
    assert client.decrypt(record[:10]) == b""
    assert client.decrypt(record[10:]) == b"firstsecond"
    to_server.write(client.encrypt(b"back"))
    assert server.read() == b"back"


def test_context_is_made_once() -> None:
    """Thousands of connections share one context."""
    assert client_context(None, True) is client_context(None, True)
