"""What only the fast connection promises: kernel stamps, its own limits, cheap reads, sockets it does not leave behind."""

from __future__ import annotations

import asyncio
import errno
import gc
import resource
import socket
import struct
import threading
import time

import pytest

from distbench.core.records import ErrorKind, Stamp
from distbench.errors import PlanError
from distbench.wire import connect, stamps
from distbench.wire.base import Timeouts, WireTarget
from distbench.wire.fast import FastConnection
from distbench.wire.stamps import ANCILLARY_BYTES, MAX_PLAUSIBLE_LAG_NS, ReadClock, arrivals_ns
from tests.support.scripted import Act, Step, chunked, head, scripted_server, stream, whole
from tests.wire.support import BODY, answer_of, ask, ask_once, connection, run

pytestmark = pytest.mark.usefixtures("each_hot_path")
EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"hi"}}]}\n\n'
END = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
GOOD = stream(EVENT, END)
MS = 1_000_000


def test_stamps_lie_between_sending_and_reading() -> None:
    """Each piece's stamp is after the server began to send it and before it was read."""

    async def go() -> None:
        response: list[Step] = [head("Transfer-Encoding: chunked")]
        for piece in chunked(EVENT, EVENT, EVENT, END):
            response += [0.01, piece]
        async with scripted_server([response]) as seen:
            conn = connection("fast", seen.url())
            exchange = await conn.exchange(1, BODY)
            read_ns = time.monotonic_ns()
            await conn.close()
            sent = [at for at, piece in seen.sent_ns if b"data:" in piece]
            assert exchange.stamp is Stamp.KERNEL
            assert len(exchange.stamps_ns) == len(sent) == 4
            for sent_ns, stamp_ns in zip(sent, exchange.stamps_ns, strict=True):
                # The two clocks are read one after the other: a grain of theirs may stand between.
                assert sent_ns - 100_000 <= stamp_ns <= read_ns

    run(go())


def test_stalled_loop_is_booked_as_lag_not_as_the_servers() -> None:
    """A client kept from reading for 50 ms stamps right all the same, and says how late it was (C32, C93)."""

    async def go() -> None:
        # The server runs in a thread of its own; this loop is blocked from before it sends until long after.
        listener = socket.create_server(("127.0.0.1", 0))
        is_blocked, has_sent = threading.Event(), threading.Event()
        sending: list[int] = []

        def serve() -> None:
            sock, _ = listener.accept()
            with sock:
                sock.recv(65_536)
                is_blocked.wait(10)
                sending.append(time.monotonic_ns())
                sock.sendall(b"".join(step for step in GOOD if isinstance(step, bytes)))
                sending.append(time.monotonic_ns())
                has_sent.set()
                sock.recv(1)

        conn = connection("fast", f"http://127.0.0.1:{listener.getsockname()[1]}/v1/chat/completions")
        serving = asyncio.get_running_loop().run_in_executor(None, serve)
        asking = asyncio.ensure_future(conn.exchange(1, BODY))
        await asyncio.sleep(0.02)
        is_blocked.set()
        has_sent.wait(10)
        time.sleep(0.05)  # noqa: ASYNC251 - the stall
        exchange = await asking
        await conn.close()
        await serving
        listener.close()
        assert exchange.error_kind is None
        assert exchange.stamp is Stamp.KERNEL
        assert exchange.client_lag_ns is not None
        assert exchange.client_lag_ns > 45 * MS
        assert sending[0] - MS <= exchange.stamps_ns[0] <= sending[1] + 5 * MS

    run(go())


def test_read_clock_moves_a_stamp_to_the_monotonic_clock() -> None:
    """A stamp of 5 ms ago is an arrival 5 ms ago, and a lag of 5 ms."""
    clock = ReadClock()
    before_ns = time.monotonic_ns()
    stamp = struct.pack("qq", *divmod(time.time_ns() - 5 * MS, 1_000_000_000))
    after_ns = time.monotonic_ns()
    arrival_ns = clock.arrival_ns([(1, 35, stamp)])
    assert before_ns - 6 * MS < arrival_ns < after_ns - 4 * MS
    assert 4 * MS < clock.worst_lag_ns < time.monotonic_ns() - before_ns + 6 * MS
    assert not clock.is_user


@pytest.mark.parametrize("offset_ns", [MAX_PLAUSIBLE_LAG_NS + 100 * MS, -100 * MS])
def test_read_clock_does_not_believe_an_implausible_stamp(offset_ns: int) -> None:
    """Stamps from the future or older than a second are replaced by the time of reading, and marked (C70)."""
    clock = ReadClock()
    stamp = struct.pack("qq", *divmod(time.time_ns() - offset_ns, 1_000_000_000))
    before_ns = time.monotonic_ns()
    assert clock.arrival_ns([(1, 35, stamp)]) >= before_ns
    assert (clock.is_user, clock.worst_lag_ns) == (True, -1)
    clock.reset()
    assert not clock.is_user
    assert clock.arrival_ns([]) >= before_ns
    assert clock.is_user


def test_wall_clock_step_does_not_move_a_stamp(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a step of the wall clock the next stamps are right again (C70)."""
    clock = ReadClock()
    real = time.time_ns
    for step_ns in (-5_000 * MS, 5_000 * MS):
        monkeypatch.setattr(stamps, "time_ns", lambda step_ns=step_ns: real() + step_ns)
        stamp = struct.pack("qq", *divmod(real() + step_ns, 1_000_000_000))
        now_ns = time.monotonic_ns()
        assert abs(clock.arrival_ns([(1, 35, stamp)]) - now_ns) < 20 * MS
    assert not clock.is_user


def test_kernel_without_stamps_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the kernel stamps nothing, user-space times stand in and the request says so."""
    monkeypatch.setattr(stamps, "enable", lambda sock: False)
    exchange = ask_once("fast", GOOD)
    assert (exchange.error_kind, exchange.stamp, exchange.client_lag_ns) == (None, Stamp.USER, None)
    assert answer_of(exchange).completion_tokens == 1


def test_stamping_goes_on_for_the_whole_process() -> None:
    """Once asked, the kernel stamps for every later connection from its first byte."""
    assert stamps.keep_stamping()
    near, far = socket.socketpair(socket.AF_UNIX)
    near.close()
    far.close()
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as one,
    ):
        other, _ = listener.accept()
        with other:
            assert stamps.enable(one)
            other.send(b"x")
            assert one.recvmsg(10, ANCILLARY_BYTES)[1]


def test_bytes_behind_an_answer_cost_the_connection_only() -> None:
    """Surplus bytes behind a whole answer do not fail it; the connection is not used again."""
    last = [*GOOD[:-1], b"0\r\n\r\nHTTP/1.1 400 Bad Request\r\n\r\n"]
    exchanges, seen = run(ask("fast", last, last, times=2))
    assert [exchange.error_kind for exchange in exchanges] == [None, None]
    assert seen.accepts == 2
    exchanges, seen = run(ask("fast", [whole(EVENT + END) + b"more"], times=2))
    assert [exchange.error_kind for exchange in exchanges] == [None, None]
    assert seen.accepts == 2


def test_unasked_bytes_on_an_idle_connection_close_it() -> None:
    """A server that speaks without being asked (such as 408 before closing) costs a new connection, not a request."""
    timed_out = whole(b"", "Connection: close", status="408 Request Timeout")

    async def go() -> None:
        async with scripted_server([[*GOOD, 0.03, timed_out, Act.CLOSE]], [GOOD]) as seen:
            conn = connection("fast", seen.url())
            await conn.exchange(1, BODY)
            for _ in range(200):
                if not conn.connected:
                    break
                await asyncio.sleep(0.02)
            assert not conn.connected
            second = await conn.exchange(2, BODY)
            await conn.close()
            assert (second.error_kind, second.status, seen.accepts) == (None, 200, 2)

    run(go())


def test_head_that_was_begun_is_never_asked_for_again() -> None:
    """After one byte of an answer a request is not sent again, on a reused connection either (C40)."""

    async def go() -> None:
        async with scripted_server([GOOD, [b"HTTP/1.1 ", Act.CLOSE]], [GOOD]) as seen:
            conn = connection("fast", seen.url())
            await conn.exchange(1, BODY)
            second = await conn.exchange(2, BODY)
            await conn.close()
            assert (second.error_kind, second.attempts, seen.accepts) == (ErrorKind.TRUNCATED, 1, 1)

    run(go())


def test_early_refusal_of_a_large_request_is_read() -> None:
    """A server that answers 413 without reading the body and closes is heard; the connection is not used again."""
    answer = whole(b'{"detail":"too large"}', status="413 Payload Too Large")

    async def go() -> None:
        async with scripted_server([[answer, 0.2, Act.CLOSE]], read_requests=False) as seen:
            conn = connection("fast", seen.url())
            exchange = await conn.exchange(1, b"x" * 8_000_000)
            assert (exchange.status, exchange.error_kind, conn.connected) == (413, None, False)
            await conn.close()

    run(go())


def test_opening_ahead_is_told_by_the_first_request() -> None:
    """connect() opens without a request; what it cost stands in the first exchange, and only there."""

    async def go() -> None:
        async with scripted_server([GOOD, GOOD]) as seen:
            conn = connection("fast", seen.url())
            assert await conn.connect() is None
            assert await conn.connect() is None
            assert conn.connected
            exchanges = [await conn.exchange(i, BODY) for i in range(2)]
            await conn.close()
            await conn.close()
            assert (seen.accepts, conn.connected) == (1, False)
            assert [exchange.connect_ns is not None for exchange in exchanges] == [True, False]

    run(go())


def test_failed_opening_gives_its_reason() -> None:
    """connect() returns the failure as an exchange; it does not raise."""

    async def go() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        conn = connection("fast", f"http://127.0.0.1:{port}/v1/chat/completions")
        failure = await conn.connect()
        assert failure is not None
        assert (failure.error_kind, failure.attempts) == (ErrorKind.CONNECT, 0)
        assert failure.error_text == f"cannot connect to 127.0.0.1:{port}: connection refused"

    run(go())


def test_connect_limit_ends_an_unanswered_handshake() -> None:
    """A peer whose queue is full does not answer: the connect limit ends it, and names itself (C41)."""

    async def go() -> None:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen(0)
            fillers = [socket.socket() for _ in range(4)]
            for filler in fillers:
                filler.setblocking(False)
                filler.connect_ex(listener.getsockname())
            conn = connection(
                "fast",
                f"http://127.0.0.1:{listener.getsockname()[1]}/v1/x",
                timeouts=Timeouts(connect_s=0.15),
            )
            failure = await conn.connect()
            for filler in fillers:
                filler.close()
            assert failure is not None
            assert failure.error_kind is ErrorKind.CONNECT_TIMEOUT
            assert "0.15 s" in (failure.error_text or "")

    run(go())


def test_out_of_descriptors_is_the_clients_limit() -> None:
    """EMFILE is never the server's failure (C47)."""

    async def go() -> None:
        async with scripted_server([GOOD]) as seen:
            conn = connection("fast", seen.url())
            await asyncio.sleep(0)
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            lowest_free = socket.socket()
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free.fileno() + 1, hard))
            try:
                failure = await conn.connect()
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
                lowest_free.close()
            assert failure is not None
            assert failure.error_kind is ErrorKind.CLIENT_FD_LIMIT

    stamps.keep_stamping()
    run(go())


def test_out_of_ports_is_the_clients_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """EADDRNOTAVAIL is told as the client's lack of ports."""

    async def no_port(_self: object, _where: str) -> socket.socket:
        raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")

    monkeypatch.setattr(connect.Dialer, "_open", no_port)
    failure = run(connection("fast", "http://127.0.0.1:1/v1/x").connect())
    assert failure is not None
    assert failure.error_kind is ErrorKind.CLIENT_PORTS


def test_second_address_is_tried_when_the_first_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name with several addresses is reached by any that answers, and resolved once."""
    calls: list[str] = []

    async def go() -> None:
        async with scripted_server([GOOD], [GOOD]) as seen:

            async def resolve(host: str, port: int) -> list[tuple[socket.AddressFamily, tuple[str, int]]]:
                calls.append(host)
                return [(socket.AF_INET, ("127.0.0.2", port)), (socket.AF_INET, ("127.0.0.1", port))]

            monkeypatch.setattr(connect, "_resolve", resolve)
            conn = connection("fast", seen.url(host="model.example"), keepalive=False)
            exchanges = [await conn.exchange(i, BODY) for i in range(2)]
            await conn.close()
            assert [exchange.error_kind for exchange in exchanges] == [None, None]
            assert b"Host: model.example" in seen.requests[0]
            assert calls == ["model.example"]

    run(go())


def test_cancel_while_connecting_leaves_nothing_open() -> None:
    """Cancelling during the TCP handshake closes the socket and leaves an exchange that was never sent."""

    async def go() -> None:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen(0)
            fillers = [socket.socket() for _ in range(4)]
            for filler in fillers:
                filler.setblocking(False)
                filler.connect_ex(listener.getsockname())
            conn = connection("fast", f"http://127.0.0.1:{listener.getsockname()[1]}/v1/x")
            task = asyncio.ensure_future(conn.exchange(1, BODY))
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            part = conn.partial()
            for filler in fillers:
                filler.close()
            assert part is not None
            assert (part.cut, part.sent_ns, part.attempts, conn.connected) == (True, None, 0, False)
            gc.collect()  # an unclosed socket would warn, and warnings are errors here

    run(go())


def test_plain_asyncio_loop_works_too() -> None:
    """Nothing but add_reader is asked of the loop."""
    exchanges, _ = asyncio.run(ask("fast", GOOD, GOOD, times=2))
    assert [exchange.error_kind for exchange in exchanges] == [None, None]


def test_answer_that_came_in_time_is_not_timed_out_by_a_late_loop() -> None:
    """When the loop was kept busy past a limit, what the kernel had received before is judged by its stamp."""

    async def go() -> None:
        async with scripted_server([[*GOOD]]) as seen:
            conn = connection("fast", seen.url(), timeouts=Timeouts(first_token_s=0.1, total_s=0.2))
            task = asyncio.ensure_future(conn.exchange(1, BODY))
            await asyncio.sleep(0.002)
            time.sleep(0.3)  # noqa: ASYNC251 - the late loop
            exchange = await task
            await conn.close()
            assert exchange.error_kind in (None, ErrorKind.FIRST_TOKEN_TIMEOUT, ErrorKind.TOTAL_TIMEOUT)
            if len(seen.sent_ns) == len(GOOD):
                assert exchange.error_kind is None

    run(go())


@pytest.mark.parametrize(
    ("url", "headers"),
    [
        ("ftp://h/v1", ()),
        ("http://", ()),
        ("http://h/v1", (("X-Bad", "a\r\nX-Evil: b"),)),
        ("http://h/v1", (("Bad Name", "a"),)),
        ("http://h/v1", (("Authorization", "Bearer s3cret\n"),)),
    ],
)
def test_target_that_cannot_be_used_is_a_bad_plan(url: str, headers: tuple[tuple[str, str], ...]) -> None:
    """A URL or a header that cannot be sent is refused before anything is, without showing a secret."""
    with pytest.raises(PlanError) as caught:
        FastConnection(WireTarget(url=url, headers=headers))
    assert "s3cret" not in str(caught.value)


def test_secrets_do_not_show_in_repr() -> None:
    """The headers of a target are not in its repr (C57)."""
    assert "s3cret" not in repr(WireTarget(url="http://h/v1", headers=(("Authorization", "Bearer s3cret"),)))


@pytest.mark.parametrize("count", [1, 5, 100])
def test_stamps_of_many_reads_are_those_of_each(count: int) -> None:
    """Few are reckoned one by one and many at a time; a read without a stamp gets a time that nobody believes."""
    distance_ns = -1_700_000_000_000_000_000
    wall_ns = [1_700_000_001_000_000_000 + 7 * number for number in range(count)]
    ancillaries: list[list[tuple[int, int, bytes]]] = [
        [(1, 35, struct.pack("qq", *divmod(each, 1_000_000_000)))] for each in wall_ns
    ]
    expected = [1_000_000_000 + 7 * number for number in range(count)]
    assert arrivals_ns(ancillaries, distance_ns) == expected
    ancillaries[0] = []
    assert arrivals_ns(ancillaries, distance_ns) == [distance_ns, *expected[1:]]
