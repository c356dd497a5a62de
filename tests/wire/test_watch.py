"""One epoll for all sockets: what arrived is told once, nothing that arrived is missed, and nothing is left open."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import time
from array import array
from collections.abc import Callable
from typing import Any

import pytest
import uvloop

from distbench.wire import hot_path, stamps
from distbench.wire.watch import EpollWatch, LoopWatch, watch_of
from tests.support.scripted import chunk
from tests.wire.support import stamped_pair

pytestmark = pytest.mark.usefixtures("each_hot_path")
LOOPS: list[Callable[[], asyncio.AbstractEventLoop]] = [uvloop.new_event_loop, asyncio.new_event_loop]


@pytest.fixture(params=LOOPS, ids=["uvloop", "asyncio"])
def loop(request: pytest.FixtureRequest) -> Any:
    """Give a loop of each kind; it is closed at the end."""
    loop = request.param()
    yield loop
    loop.close()


def pair() -> tuple[socket.socket, socket.socket]:
    """Return (ours, the peer's)."""
    ours, peers = socket.socketpair()
    ours.setblocking(False)
    return ours, peers


class Reader:
    """A callback that reads up to so many bytes at a time."""

    def __init__(self, sock: socket.socket, size: int = 100) -> None:
        self.sock, self.size = sock, size
        self.calls = 0
        self.reads: list[bytes] = []

    def __call__(self) -> bool:
        self.calls += 1
        try:
            data = self.sock.recv(self.size)
        except BlockingIOError:
            return False
        self.reads.append(data)
        return bool(data)


def framed(text: bytes) -> bytes:
    """Return a chunk that is a repeat for a stream here."""
    return chunk(b"<%b>" % text)


class Stream:
    """A stream on a TCP socket of its own, within an answer of repeats."""

    def __init__(self, loop: asyncio.AbstractEventLoop, watch: EpollWatch) -> None:
        self.ours, self.peer = stamped_pair()
        self.recvmsg: Any = self.ours.recvmsg
        self.stamps_ns = array("q")
        self.repeats: Any = hot_path.in_use.repeats(self.stamps_ns, 1_000)
        self.repeats.expect((b"<", b">\r\n"))
        self.others: list[Any] = []
        watch.add(self.ours.fileno(), self.on_readable, self)

    def on_readable(self) -> bool:
        data = self.ours.recv(100)
        self.others.append(data)
        return bool(data)

    def take_read(self, data: bytes, ancillary: list[Any]) -> bool:
        if self.repeats is None:
            raise RuntimeError("a bug")
        self.others.append((data, [part[:2] for part in ancillary]))
        return True

    def take_error(self, error: OSError) -> None:
        self.others.append((type(error), error.errno))

    def close(self, watch: EpollWatch) -> None:
        watch.remove(self.ours.fileno())
        self.ours.close()
        self.peer.close()


def test_streams_are_read_together_and_each_read_has_its_own_time(loop: asyncio.AbstractEventLoop) -> None:
    """300 streams, more than are read at a time; arrival and lag are those of the kernel's stamp."""
    stamps.keep_stamping()
    watch = EpollWatch(loop)
    streams = [Stream(loop, watch) for _ in range(300)]
    before_ns = time.monotonic_ns()
    for number, stream in enumerate(streams):
        stream.peer.send(framed(b"x" * (number + 1)))
    sent_ns = time.monotonic_ns()
    time.sleep(0.03)
    turn(loop)
    now_ns = time.monotonic_ns()
    assert streams[3].repeats.bytes_left == 1_000 - 11  # "6", "<xxxx>" and two line ends
    for number, stream in enumerate(streams):
        (stamp_ns,) = stream.stamps_ns
        assert before_ns - 100_000 <= stamp_ns <= sent_ns + 5_000_000
        assert 20_000_000 < stream.repeats.worst_lag_ns <= now_ns - stamp_ns
        assert stream.repeats.bytes_left == 1_000 - len(framed(b"x" * (number + 1)))  # each took its own
        assert stream.others == []
        stream.close(watch)


def test_what_is_no_repeat_goes_to_the_stream_and_a_fault_costs_no_other(
    loop: asyncio.AbstractEventLoop,
) -> None:
    """An odd read with its stamp, a failed one, one whose stream has a bug, a peer that closed, and two plain ones around them."""
    stamps.keep_stamping()
    told: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: told.append(context))
    watch = EpollWatch(loop)
    first, odd, failed, bug, closed, last = streams = [Stream(loop, watch) for _ in range(6)]
    reading, writing = os.pipe()
    watch.remove(failed.ours.fileno())
    # A pipe that is taken for a socket: reading it as one fails.
    os.dup2(reading, failed.ours.fileno())
    watch.add(failed.ours.fileno(), failed.on_readable, failed)
    bug.repeats = None
    for stream in streams:
        stream.peer.send(b"!" if stream is odd else framed(b"x"))
    os.write(writing, b"x")
    closed.peer.shutdown(socket.SHUT_WR)
    turn(loop)
    assert (len(first.stamps_ns), len(last.stamps_ns)) == (1, 1)
    assert first.others == last.others == []
    assert odd.others == [(b"!", [(socket.SOL_SOCKET, 35)])]
    assert failed.others == [(OSError, errno.ENOTSOCK)]
    assert closed.others == [framed(b"x"), b""]
    assert [str(context["exception"]) for context in told] == ["a bug"]
    for stream in streams:
        stream.close(watch)
    os.close(reading)
    os.close(writing)


def turn(loop: asyncio.AbstractEventLoop, seconds: float = 0.02) -> None:
    """Let the loop run for a moment."""
    loop.run_until_complete(asyncio.sleep(seconds))


def test_an_arrival_is_told_once_also_one_from_before(loop: asyncio.AbstractEventLoop) -> None:
    """Bytes that waited when the socket was added count; without new ones there is no further call."""
    ours, peers = pair()
    with ours, peers:
        reader, watch = Reader(ours), EpollWatch(loop)
        peers.send(b"early")
        watch.add(ours.fileno(), reader)
        turn(loop)
        turn(loop)
        assert (reader.reads, reader.calls) == ([b"early"], 1)
        peers.send(b"late")
        turn(loop)
        assert (reader.reads, reader.calls) == ([b"early", b"late"], 2)
        watch.remove(ours.fileno())


def test_a_close_behind_the_last_bytes_is_seen(loop: asyncio.AbstractEventLoop) -> None:
    """Both came before the loop looked, which is told once: the reader is called until there is nothing more."""
    ours, peers = pair()
    with ours:
        reader, watch = Reader(ours), EpollWatch(loop)
        watch.add(ours.fileno(), reader)
        peers.send(b"the end")
        peers.close()
        turn(loop)
        assert reader.reads == [b"the end", b""]
        watch.remove(ours.fileno())


def test_what_a_full_read_left_behind_is_called_for_again(loop: asyncio.AbstractEventLoop) -> None:
    """300 bytes in reads of 100, each asking to be called again as a full buffer does; the fourth finds nothing."""
    ours, peers = pair()
    with ours, peers:
        watch = EpollWatch(loop)
        reader = Reader(ours)

        def read() -> bool:
            took = reader()
            if took:
                watch.again(ours.fileno())
            return took

        watch.add(ours.fileno(), read)
        peers.send(b"x" * 300)
        turn(loop)
        assert (reader.reads, reader.calls) == ([b"x" * 100] * 3, 4)
        watch.remove(ours.fileno())


def test_a_socket_removed_by_another_ones_callback_is_not_called(loop: asyncio.AbstractEventLoop) -> None:
    """Both are ready at once; whichever comes first removes the other."""
    (a, a_peer), (b, b_peer) = pair(), pair()
    with a, a_peer, b, b_peer:
        watch = EpollWatch(loop)
        called: list[str] = []

        def callback(name: str, other: socket.socket) -> Callable[[], bool]:
            def call() -> bool:
                called.append(name)
                watch.remove(other.fileno())
                return False

            return call

        watch.add(a.fileno(), callback("a", b))
        watch.add(b.fileno(), callback("b", a))
        a_peer.send(b"x")
        b_peer.send(b"x")
        turn(loop)
        assert len(called) == 1
        for sock in (a, b):
            watch.remove(sock.fileno())


def test_a_callback_that_fails_costs_no_other_its_arrival(loop: asyncio.AbstractEventLoop) -> None:
    """The fault goes to the loop's handler; the other sockets of the same batch, told only once, are still read."""
    told: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: told.append(context))
    pairs = [pair() for _ in range(3)]
    readers = [Reader(ours) for ours, _ in pairs]
    watch = EpollWatch(loop)

    def fail() -> bool:
        raise RuntimeError("a bug")

    callbacks: list[Callable[[], bool]] = [readers[0], fail, readers[2]]
    for (ours, _), callback in zip(pairs, callbacks, strict=True):
        watch.add(ours.fileno(), callback)
    for _, peers in pairs:
        peers.send(b"x")
    turn(loop)
    assert [reader.reads for reader in readers] == [[b"x"], [], [b"x"]]
    assert [str(context["exception"]) for context in told] == ["a bug"]
    for ours, peers in pairs:
        watch.remove(ours.fileno())
        ours.close()
        peers.close()


def test_the_epoll_is_shared_and_goes_with_the_last_socket(loop: asyncio.AbstractEventLoop) -> None:
    """The sockets of a loop have one descriptor more between them, and none when they are gone; a new socket begins anew."""
    (a, a_peer), (b, b_peer) = pair(), pair()
    with a, a_peer, b, b_peer:
        before = len(os.listdir("/proc/self/fd"))
        watches = []
        for sock in (a, b):
            watches.append(watch_of(loop))
            watches[-1].add(sock.fileno(), lambda: False)
        assert watches[0] is watches[1]
        assert len(os.listdir("/proc/self/fd")) == before + 1
        for sock in (a, b):
            watches[0].remove(sock.fileno())
        assert len(os.listdir("/proc/self/fd")) == before
        reader, again = Reader(a), watch_of(loop)
        again.add(a.fileno(), reader)
        a_peer.send(b"x")
        turn(loop)
        assert reader.reads == [b"x"]
        again.remove(a.fileno())


def test_without_epoll_the_loop_watches(
    loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Elsewhere than on Linux the loop's own way does, which reports a socket as long as bytes are left."""
    monkeypatch.delattr("select.epoll")
    ours, peers = pair()
    with ours, peers:
        watch, reader = watch_of(loop), Reader(ours, size=2)
        assert isinstance(watch, LoopWatch)
        watch.add(ours.fileno(), reader)
        peers.send(b"abcd")
        turn(loop)
        assert reader.reads == [b"ab", b"cd"]
        watch.remove(ours.fileno())
