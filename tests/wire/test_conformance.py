"""One suite for both implementations of a connection, against servers that send exactly these bytes."""

from __future__ import annotations

import asyncio
import json

import pytest

from distbench.core.records import ErrorKind, Stamp
from tests.support.scripted import (
    Act,
    Response,
    byte_by_byte,
    chunked,
    head,
    refused_port,
    scripted_server,
    stream,
    whole,
)
from tests.wire.support import BODY, Kind, answer_of, ask, ask_once, connection, run

EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"hi"}}]}\n\n'
END = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
GOOD = stream(EVENT, END)
TEXT = EVENT + END

# Every way to frame a body of two pieces: name, response, may the connection be used again.
FRAMINGS: list[tuple[str, Response, bool]] = [
    ("chunks", GOOD, True),
    ("one segment", [b"".join(step for step in GOOD if isinstance(step, bytes))], True),
    ("byte by byte", byte_by_byte(*(step for step in GOOD if isinstance(step, bytes))), True),
    ("head and body apart", [head("Transfer-Encoding: chunked"), 0.01, *chunked(EVENT, END)], True),
    ("end apart", [*stream(EVENT, END)[:-1], 0.01, b"0\r\n", b"\r\n"], True),
    (
        "extensions",
        [head("Transfer-Encoding: chunked"), b'%x;a=b;c="d"\r\n%b\r\n0;last\r\n\r\n' % (len(TEXT), TEXT)],
        True,
    ),
    (
        "trailers",
        [
            head("Transfer-Encoding: chunked", "Trailer: X-Sum"),
            *chunked(EVENT, END, last=b"0\r\nX-Sum: 7\r\n\r\n"),
        ],
        True,
    ),
    (
        "upper case and zeros",
        [head("Transfer-Encoding: Chunked"), b"000%X\r\n%b\r\n0000\r\n\r\n" % (len(TEXT), TEXT)],
        True,
    ),
    ("events over chunks", stream(TEXT[:9], TEXT[9:40], TEXT[40:]), True),
    ("content-length", [whole(TEXT)], True),
    ("content-length in pieces", [head(f"Content-Length: {len(TEXT)}"), TEXT[:30], 0.005, TEXT[30:]], True),
    ("until close", [head(), EVENT, 0.005, END, Act.CLOSE], False),
    (
        "connection: close",
        [head("Connection: close", "Transfer-Encoding: chunked"), *chunked(EVENT, END), Act.CLOSE],
        False,
    ),
    ("http/1.0", [head(version="1.0"), TEXT, Act.CLOSE], False),
    ("100 continue", [b"HTTP/1.1 100 Continue\r\n\r\n", *GOOD], True),
    (
        "103 early hints",
        [b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n", 0.005, *GOOD],
        True,
    ),
]


@pytest.mark.parametrize(
    ("response", "reusable"), [(r, u) for _, r, u in FRAMINGS], ids=[n for n, _, _ in FRAMINGS]
)
def test_framing_gives_the_body_and_the_connection_back(
    kind: Kind, response: Response, reusable: bool
) -> None:
    """However a body is framed and split, it arrives whole and once, and the connection serves again exactly where it may."""
    exchanges, seen = run(ask(kind, response, response, times=2))
    for exchange in exchanges:
        assert (exchange.error_kind, exchange.status, exchange.complete) == (None, 200, True)
        assert b"".join(exchange.body) == TEXT
        assert len(exchange.body) == len(exchange.stamps_ns)
        assert list(exchange.stamps_ns) == sorted(exchange.stamps_ns)
        answer = answer_of(exchange)
        assert (answer.error_kind, answer.completion_tokens, answer.text) == (None, 1, "hi")
        assert (exchange.attempts, exchange.reconnects) == (1, 0)
    assert seen.accepts == (1 if reusable else 2)
    assert (exchanges[0].connect_ns is not None, exchanges[1].connect_ns is None) == (True, reusable)


def test_request_is_what_a_server_expects(kind: Kind) -> None:
    """Method, path, host, id, length, identity coding and the user's headers are sent, once each, and the body unchanged."""
    headers = (("Authorization", "Bearer k"), ("X-Team", "a"))
    _, seen = run(ask(kind, GOOD, times=1, headers=headers))
    request = seen.requests[0]
    top, _, body = request.partition(b"\r\n\r\n")
    line, *fields = top.decode().split("\r\n")
    sent = {name.lower(): value for name, value in (field.split(": ", 1) for field in fields)}
    assert line == "POST /v1/chat/completions HTTP/1.1"
    assert body == BODY
    assert len(sent) == len(fields)
    assert sent == {
        "host": f"127.0.0.1:{seen.port}",
        "accept": "text/event-stream",
        "accept-encoding": "identity",
        "user-agent": "distbench/0.1.0",
        "content-type": "application/json",
        "authorization": "Bearer k",
        "x-team": "a",
        "connection": "keep-alive",
        "x-request-id": "1000",
        "content-length": str(len(BODY)),
    }


def test_no_keepalive_opens_a_connection_each_time_and_says_so(kind: Kind) -> None:
    """With keepalive off each request has a connection of its own, told to the server (C46)."""
    exchanges, seen = run(ask(kind, GOOD, times=3, keepalive=False))
    assert seen.accepts == 3
    assert all(b"connection: close" in request.lower() for request in seen.requests)
    assert all(exchange.connect_ns is not None for exchange in exchanges)


def test_keepalive_uses_one_connection_for_all(kind: Kind) -> None:
    """Requests one after another share one connection; only the first bears a connect time (C46)."""
    exchanges, seen = run(ask(kind, *[GOOD] * 20, times=20))
    assert seen.accepts == 1
    assert [exchange.connect_ns is not None for exchange in exchanges] == [True] + [False] * 19


def test_large_request_and_answer_pass_whole(kind: Kind) -> None:
    """A body larger than any socket buffer is sent in parts, a long answer is read in parts (C09)."""
    body = json.dumps({"prompt": "p" * 4_000_000}).encode()
    event = b'data: {"choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n' % (b"a" * 1_000_000)

    async def go() -> None:
        async with scripted_server([stream(event, END)]) as seen:
            conn = connection(kind, seen.url())
            exchange = await conn.exchange(1, body)
            await conn.close()
            assert seen.requests[0].endswith(body)
            answer = answer_of(exchange)
            assert (answer.error_kind, len(answer.text or ""), len(answer.chunk_ns)) == (None, 1_000_000, 1)

    run(go())


BROKEN: list[tuple[str, Response, ErrorKind]] = [
    ("closed without a byte", [Act.CLOSE], ErrorKind.RESET),
    ("reset without a byte", [Act.RESET], ErrorKind.RESET),
    ("closed in the head", [b"HTTP/1.1 200 OK\r\nContent-", Act.CLOSE], ErrorKind.TRUNCATED),
    (
        "closed in a chunk",
        [head("Transfer-Encoding: chunked"), b"40\r\ndata: ", 0.01, Act.CLOSE],
        ErrorKind.TRUNCATED,
    ),
    ("closed between chunks", [*GOOD[:2], 0.01, Act.CLOSE], ErrorKind.TRUNCATED),
    ("closed before the last chunk", [*GOOD[:-1], 0.01, Act.CLOSE], ErrorKind.TRUNCATED),
    ("closed in a length", [head("Content-Length: 900"), EVENT, 0.01, Act.CLOSE], ErrorKind.TRUNCATED),
    ("reset in the body", [*GOOD[:2], 0.01, Act.RESET], ErrorKind.RESET),
    ("no http", [b"SSH-2.0-OpenSSH_9.6\r\n", 0.01, Act.CLOSE], ErrorKind.PROTOCOL),
    ("bad status line", [b"HTTP/1.1 OK 200\r\n\r\n", 0.01, Act.CLOSE], ErrorKind.PROTOCOL),
    (
        "bad chunk size",
        [head("Transfer-Encoding: chunked"), b"zz\r\nabc\r\n", 0.01, Act.CLOSE],
        ErrorKind.PROTOCOL,
    ),
    (
        "chunk too long",
        [head("Transfer-Encoding: chunked"), b"3\r\nabcdef\r\n", 0.01, Act.CLOSE],
        ErrorKind.PROTOCOL,
    ),
]


@pytest.mark.parametrize(("name", "response", "expected"), BROKEN, ids=[n for n, _, _ in BROKEN])
def test_broken_answers_fail_with_their_kind(
    kind: Kind, name: str, response: Response, expected: ErrorKind
) -> None:
    """Each way of breaking off has its word; what had arrived is kept; the next request gets a fresh connection."""

    async def go() -> None:
        async with scripted_server([response], [GOOD]) as seen:
            conn = connection(kind, seen.url())
            broken = await conn.exchange(1, BODY)
            after = await conn.exchange(2, BODY)
            await conn.close()
            # httpx looks at a head only when it is whole, and does not tell one that was begun from none.
            is_unseen = kind == "httpx" and name in ("closed in the head", "no http")
            told = ErrorKind.RESET if is_unseen else expected
            assert (broken.error_kind, broken.complete, broken.cut) == (told, False, False)
            assert broken.error_text
            assert (broken.attempts, broken.reconnects) == (1, 0)
            assert broken.end_ns is not None
            assert broken.sent_ns is not None
            assert broken.end_ns >= broken.sent_ns
            assert (after.error_kind, after.connect_ns is not None, seen.accepts) == (None, True, 2)

    run(go())


def test_partial_tokens_of_a_truncated_stream_are_kept(kind: Kind) -> None:
    """A stream cut after a token keeps the token's time, and is a failure."""
    exchange = ask_once(kind, [*GOOD[:2], 0.01, Act.CLOSE])
    answer = answer_of(exchange)
    assert exchange.error_kind is ErrorKind.TRUNCATED
    assert (answer.error_kind, len(answer.chunk_ns)) == (None, 1)


@pytest.mark.parametrize("act", [Act.CLOSE, Act.RESET])
def test_stale_connection_is_replaced_once(kind: Kind, act: Act) -> None:
    """A kept-alive connection that ends on the next request, without a byte, is replaced once; the clock runs on (C40)."""

    async def go() -> None:
        async with scripted_server([GOOD, [act]], [GOOD]) as seen:
            conn = connection(kind, seen.url())
            await conn.exchange(1, BODY)
            second = await conn.exchange(2, BODY)
            await conn.close()
            assert (second.error_kind, second.attempts, second.reconnects, seen.accepts) == (None, 2, 1, 2)
            assert second.first_sent_ns is not None
            assert second.sent_ns is not None
            assert second.first_sent_ns < second.sent_ns
            assert second.connect_ns is not None
            assert [request.count(b"\r\nX-Request-Id: 2\r\n") for request in seen.requests] == [0, 1, 1]

    run(go())


def test_idle_connection_closed_by_the_server_is_no_failure(kind: Kind) -> None:
    """A server that closes idle connections costs a new connection, not a request (C40)."""

    async def go() -> None:
        async with scripted_server([[*GOOD, 0.05, Act.CLOSE]], [GOOD]) as seen:
            conn = connection(kind, seen.url())
            first = await conn.exchange(1, BODY)
            await asyncio.sleep(0.12)
            second = await conn.exchange(2, BODY)
            await conn.close()
            assert (first.error_kind, second.error_kind, seen.accepts) == (None, None, 2)

    run(go())


def test_second_stale_connection_is_a_failure(kind: Kind) -> None:
    """The resend on a fresh connection is not repeated."""

    async def go() -> None:
        async with scripted_server([GOOD, [Act.CLOSE]], [[Act.CLOSE]]) as seen:
            conn = connection(kind, seen.url())
            await conn.exchange(1, BODY)
            second = await conn.exchange(2, BODY)
            await conn.close()
            assert (second.error_kind, second.attempts, second.reconnects, seen.accepts) == (
                ErrorKind.RESET,
                2,
                1,
                2,
            )

    run(go())


def test_refused_connection_says_where(kind: Kind) -> None:
    """A closed port is a connect failure that names the address."""
    port = refused_port()

    async def go() -> None:
        conn = connection(kind, f"http://127.0.0.1:{port}/v1/chat/completions")
        exchange = await conn.exchange(1, BODY)
        await conn.close()
        assert exchange.error_kind is ErrorKind.CONNECT
        assert f"127.0.0.1:{port}" in (exchange.error_text or "")
        assert (exchange.attempts, exchange.sent_ns, exchange.status) == (0, None, None)

    run(go())


def test_unknown_host_is_a_connect_failure(kind: Kind) -> None:
    """A name that does not resolve is told as such."""

    async def go() -> None:
        conn = connection(kind, "http://no-such-host.invalid:1/v1/chat/completions")
        exchange = await conn.exchange(1, BODY)
        await conn.close()
        assert exchange.error_kind is ErrorKind.CONNECT
        assert "no-such-host.invalid" in (exchange.error_text or "")

    run(go())


def test_cancelled_exchange_is_cut_and_keeps_its_part(kind: Kind) -> None:
    """Cancelling the task ends the exchange at once, closes the socket and leaves what had arrived (C65)."""

    async def go() -> None:
        async with scripted_server([[*GOOD[:2], Act.HANG]], [GOOD]) as seen:
            conn = connection(kind, seen.url())
            task = asyncio.ensure_future(conn.exchange(1, BODY))
            await asyncio.sleep(0.1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            part = conn.partial()
            assert part is not None
            assert (part.cut, part.error_kind, b"".join(part.body), part.complete) == (
                True,
                None,
                EVENT,
                False,
            )
            assert part.end_ns is not None
            assert not conn.connected
            after = await conn.exchange(2, BODY)
            assert (after.error_kind, conn.partial()) == (None, None)
            await conn.close()

    run(go())


def test_http_errors_are_answers_of_the_wire(kind: Kind) -> None:
    """A status of 400 or more is no failure of the wire; its meaning is read with the body (C39, C43)."""
    exchange = ask_once(kind, [whole(b'{"error":"Unauthorized"}', status="401 Unauthorized")])
    assert (exchange.error_kind, exchange.status, exchange.complete) == (None, 401, True)
    answer = answer_of(exchange)
    assert (answer.error_kind, answer.error_text) == (ErrorKind.HTTP_4XX, "HTTP 401: Unauthorized")


def test_redirects_are_not_followed(kind: Kind) -> None:
    """A redirect is shown, not obeyed: another server would be measured."""
    exchanges, seen = run(
        ask(kind, [whole(b"", "Location: http://elsewhere/v1", status="307 Temporary Redirect")])
    )
    assert (exchanges[0].status, seen.accepts) == (307, 1)
    assert answer_of(exchanges[0]).error_kind is ErrorKind.HTTP_4XX


def test_response_beyond_the_cap_is_the_clients_limit(kind: Kind) -> None:
    """An endless answer is ended by the client's own cap, which is not blamed on the server (C09)."""
    exchange = ask_once(
        kind, [head("Content-Length: 10000000"), b"x" * 300_000, Act.HANG], max_response_bytes=100_000
    )
    assert exchange.error_kind is ErrorKind.CLIENT_LIMIT
    assert "100000" in (exchange.error_text or "")


def test_many_connections_are_in_flight_at_once(kind: Kind) -> None:
    """Nothing in the client makes a request wait for another: 110 are at the server at the same time (C45)."""

    async def go() -> None:
        num_connections = 110
        async with scripted_server([[0.4, *GOOD]]) as seen:
            conns = [connection(kind, seen.url()) for _ in range(num_connections)]
            tasks = [asyncio.ensure_future(conn.exchange(i, BODY)) for i, conn in enumerate(conns)]
            for _ in range(100):
                await asyncio.sleep(0.05)
                if len(seen.requests) == num_connections:
                    break
            assert len(seen.requests) == num_connections
            exchanges = await asyncio.gather(*tasks)
            assert {exchange.error_kind for exchange in exchanges} == {None}
            for conn in conns:
                await conn.close()

    run(go(), 60)


def test_stamps_say_who_took_them(kind: Kind) -> None:
    """The fast connection's reads bear kernel stamps and a lag; the reference's bear its own time and none."""
    exchange = ask_once(kind, GOOD)
    if kind == "fast":
        assert exchange.stamp is Stamp.KERNEL
        assert exchange.client_lag_ns is not None
    else:
        assert (exchange.stamp, exchange.client_lag_ns) == (Stamp.USER, None)
    assert exchange.local_address is not None
    assert exchange.local_address.startswith("127.0.0.1:")
    assert exchange.bytes_received > 0
    assert exchange.reads > 0
