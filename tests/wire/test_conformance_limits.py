"""The limits of a request, for both implementations of a connection (the rest of the suite: test_conformance.py)."""

from __future__ import annotations

from distbench.core.records import ErrorKind
from distbench.wire.base import Timeouts
from tests.support.scripted import (
    Act,
    Response,
    Step,
    chunked,
    head,
    stream,
)
from tests.wire.support import Kind, ask, ask_once, run

EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"hi"}}]}\n\n'
END = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
GOOD = stream(EVENT, END)


def test_first_token_limit_is_about_tokens(kind: Kind) -> None:
    """Head, role chunk and pings do not stop the first-token limit (C41, C17, C04)."""
    role = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
    pings: list[Step] = [0.02, *chunked(b": ping\n\n")[:1]] * 20
    response = [head("Transfer-Encoding: chunked"), *chunked(role)[:1], *pings, Act.HANG]
    exchange = ask_once(kind, response, timeouts=Timeouts(connect_s=5, first_token_s=0.15))
    assert exchange.error_kind is ErrorKind.FIRST_TOKEN_TIMEOUT
    assert exchange.sent_ns is not None
    assert exchange.end_ns is not None
    assert 0.14 < (exchange.end_ns - exchange.sent_ns) / 1e9 < 1.5


def test_silent_server_reaches_the_first_token_limit(kind: Kind) -> None:
    """A server that accepts and says nothing is ended by the first-token limit (C41 B)."""
    exchange = ask_once(kind, [Act.HANG], timeouts=Timeouts(first_token_s=0.1, idle_s=0.03))
    assert exchange.error_kind is ErrorKind.FIRST_TOKEN_TIMEOUT


def test_idle_limit_counts_from_the_last_byte_after_the_first_token(kind: Kind) -> None:
    """Silence before the first token is not idleness, silence after it is; pings are life (C41, C04)."""
    ping = chunked(b": ping\n\n")[0]
    alive: Response = [
        0.3,
        head("Transfer-Encoding: chunked"),
        *chunked(EVENT)[:1],
        0.1,
        ping,
        0.1,
        ping,
        0.1,
        *chunked(END),
    ]
    limits = Timeouts(idle_s=0.25)
    assert ask_once(kind, alive, timeouts=limits).error_kind is None
    dead: Response = [head("Transfer-Encoding: chunked"), *chunked(EVENT)[:1], Act.HANG]
    exchange = ask_once(kind, dead, timeouts=limits)
    assert (exchange.error_kind, len(exchange.body)) == (ErrorKind.IDLE_TIMEOUT, 1)


def test_total_limit_ends_a_lively_stream(kind: Kind) -> None:
    """A stream that goes on past the total limit is cut with what it brought; without that limit it passes (C41 A)."""
    lively: list[Step] = [head("Transfer-Encoding: chunked")]
    for _ in range(12):
        lively += [*chunked(EVENT)[:1], 0.025]
    lively += chunked(END)
    exchange = ask_once(kind, lively, timeouts=Timeouts(total_s=0.15, idle_s=0.2))
    assert exchange.error_kind is ErrorKind.TOTAL_TIMEOUT
    assert 1 <= len(exchange.body) < 12
    assert ask_once(kind, lively, timeouts=Timeouts(idle_s=0.2)).error_kind is None


def test_limits_are_those_of_each_request(kind: Kind) -> None:
    """A timer left over from one request does not end the next one."""
    slow: Response = [0.08, *GOOD]
    exchanges, _ = run(ask(kind, *[slow] * 4, times=4, timeouts=Timeouts(first_token_s=0.15, total_s=0.3)))
    assert [exchange.error_kind for exchange in exchanges] == [None] * 4
