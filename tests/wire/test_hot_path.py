"""The compiled hot path means the same as the one in Python, leaves nothing behind, and gives way to it."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from distbench.wire import hot_path, stamps
from distbench.wire.hot_path import HotPath
from tests.support.hot_paths import compiled_hot_path
from tests.support.scripted import chunk
from tests.wire.support import stamped_pair

PREFIX, SUFFIX = b'data: {"text":"', b'"}\n\n\r\n'
NO_CAP = 2**40


def framed(text: bytes) -> bytes:
    """Return a text in its template, as one chunk."""
    return chunk(PREFIX + text + SUFFIX[:-2])


@pytest.fixture(scope="module")
def compiled() -> HotPath:
    """Return the compiled one."""
    return compiled_hot_path()


def taken(hot: HotPath, reads: list[bytes], cap: int, template: tuple[bytes, bytes] | None) -> Any:
    """Return which reads were repeats, and all that is known of them."""
    times = array("q")
    repeats = hot.repeats(times, cap)
    repeats.expect(template)
    flags = [repeats.take(data, number, 7 * number) for number, data in enumerate(reads, 1)]
    assert repeats.stamps_ns is times
    return flags, list(times), repeats.bytes_left, repeats.worst_lag_ns


def test_a_repeat_by_its_size_line(compiled: HotPath) -> None:
    """Lower-case digits, none of them a zero ahead, up to three: of 4,095 bytes, not of 4,096."""

    def of(line: bytes, size: int) -> bytes:
        return line + b"\r\n<" + b"x" * (size - 2) + b">\r\n"

    cases = [
        (of(b"f", 15), True),
        (of(b"0f", 15), False),
        (of(b"F", 15), False),
        (of(b"10", 16), True),
        (of(b"ff", 255), True),
        (of(b"100", 256), True),
        (of(b"fff", 4_095), True),
        (of(b"1000", 4_096), False),
        (of(b"11", 16), False),
        (of(b"10", 16)[:-1], False),
        (b"", False),
    ]
    # Framing: a line end behind the digits and one behind the chunk.
    total = 15 + 16 + 255 + 256 + 4_095 + (1 + 2 + 2 + 3 + 3) + 5 * 4
    for hot in (compiled, hot_path.PYTHON):
        found = taken(hot, [read for read, _ in cases], NO_CAP, (b"<", b">\r\n"))
        assert found == ([is_one for _, is_one in cases], [1, 4, 5, 6, 7], NO_CAP - total, 49)


@given(
    texts=st.lists(
        st.binary(max_size=40) | st.sampled_from([b'"', b"\\", b"a\nb", b"\r", b"", b" the"]), max_size=8
    ),
    at=st.integers(0, 60),
    noise=st.binary(max_size=3),
    cap=st.integers(0, 300),
    template=st.sampled_from(
        [(PREFIX, SUFFIX), (PREFIX, b"\r\n"), (b"", SUFFIX), (PREFIX + b"x", SUFFIX), None]
    ),
)
@example(texts=[b"a", b"b"], at=60, noise=b"", cap=300, template=(PREFIX, SUFFIX))
def test_compiled_repeats_are_those_of_python(
    compiled: HotPath,
    texts: list[bytes],
    at: int,
    noise: bytes,
    cap: int,
    template: tuple[bytes, bytes] | None,
) -> None:
    """Whatever the reads: whole chunks, and the same with a few bytes changed somewhere."""
    reads = [framed(text) for text in texts]
    reads += [read[:at] + noise + read[at + len(noise) :] for read in reads] + [read[:at] for read in reads]
    assert taken(compiled, reads, cap, template) == taken(hot_path.PYTHON, reads, cap, template)


@pytest.mark.parametrize("template", [1, (b"a",), (b"a", "b"), [b"a", b"b"]])
def test_what_is_no_template_is_refused(compiled: HotPath, template: Any) -> None:
    """It comes from this package alone, but compiled code must not take it for bytes."""
    repeats = compiled.repeats(array("q"), NO_CAP)
    with pytest.raises(TypeError, match="template"):
        repeats.expect(template)
    assert not repeats.take(framed(b"x"), 1, 1)


class Stream:
    """An answer of repeats on a TCP socket; on_repeat is called at each of them."""

    def __init__(self, hot: HotPath, on_repeat: Callable[[int], Any] | None = None) -> None:
        self.ours, self.peer = stamped_pair()
        self.recvmsg = self.ours.recvmsg
        self.times: list[int] = []
        self.on_repeat = on_repeat
        stamps_ns: Any = self  # of which append() is all that is used
        self.repeats = hot.repeats(stamps_ns, NO_CAP)
        self.repeats.expect((PREFIX, SUFFIX))

    def append(self, stamp_ns: int) -> None:
        self.times.append(stamp_ns)
        if self.on_repeat is not None:
            self.on_repeat(len(self.times))


@contextmanager
def watched(*streams: Stream) -> Iterator[tuple[select.epoll, dict[int, Any]]]:
    """Give an epoll of the streams' sockets, and the streams by descriptor."""
    stamps.keep_stamping()
    by_fd = {stream.ours.fileno(): stream for stream in streams}
    with select.epoll() as epoll:
        for fd in by_fd:
            epoll.register(fd, select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET)
        yield epoll, by_fd
    for stream in streams:
        stream.ours.close()
        stream.peer.close()


def distance_ns() -> int:
    """Return CLOCK_MONOTONIC minus CLOCK_REALTIME."""
    return stamps.process_clocks().check()


def test_what_python_has_not_looked_at_is_not_overtaken(compiled: HotPath) -> None:
    """While the second round is read a repeat comes behind a read that was none: it is not taken before that was looked at."""
    odd = Stream(compiled)
    last = Stream(compiled, lambda _: odd.peer.send(framed(b"behind")))
    first = Stream(compiled, lambda _: (odd.peer.send(b"odd"), last.peer.send(framed(b"b"))))
    with watched(odd, last, first) as (epoll, streams):
        first.peer.send(framed(b"a"))
        left = compiled.read_ready(epoll, streams, distance_ns())
        assert [(fd, events, data) for fd, events, data, _ in left] == [
            (odd.ours.fileno(), select.EPOLLIN, b"odd")
        ]
        assert (len(first.times), len(last.times), odd.times) == (1, 1, [])
        assert compiled.read_ready(epoll, streams, distance_ns()) == []
        assert len(odd.times) == 1


def test_a_sender_without_end_does_not_hold_the_loop(compiled: HotPath) -> None:
    """Each read brings the next: the loop is given back after 256."""
    endless = Stream(compiled, lambda _: endless.peer.send(framed(b"x")))
    with watched(endless) as (epoll, streams):
        endless.peer.send(framed(b"x"))
        assert compiled.read_ready(epoll, streams, distance_ns()) == []
        assert len(endless.times) == 256


def test_a_stamp_that_cannot_be_is_left_to_python(compiled: HotPath) -> None:
    """From the future, or from a second ago and more, as after a step of the wall clock."""
    for hot in (compiled, hot_path.PYTHON):
        stream = Stream(hot)
        with watched(stream) as (epoll, streams):
            for off_ns in (10_000_000_000, -10_000_000_000):
                stream.peer.send(framed(b"x"))
                ((_, _, data, ancillary),) = hot.read_ready(epoll, streams, distance_ns() + off_ns)
                assert data == framed(b"x")
                seconds, _ = stamps.unpack_timespec(ancillary[0][2])
                assert abs(seconds - time.time()) < 5
        assert stream.times == []


def test_nothing_is_left_in_memory(compiled: HotPath) -> None:
    """A thousand times all that may come: repeats, odd reads, a failed read, an event alone, templates, answers."""
    stream, plain = Stream(compiled), Stream(compiled)
    reading, writing = os.pipe()
    with watched(stream) as (epoll, streams):
        epoll.register(reading, select.EPOLLIN | select.EPOLLET)
        epoll.register(plain.ours.fileno(), select.EPOLLIN | select.EPOLLET)
        streams[reading] = plain

        template = (bytes(bytearray(PREFIX)), bytes(bytearray(SUFFIX)))
        shared = (None, stream, stream.repeats, plain, reading, *template)

        def go(times: int) -> None:
            for _ in range(times):
                repeats = compiled.repeats(array("q"), NO_CAP)
                repeats.expect(template)
                repeats.take(framed(b"x"), time.monotonic_ns(), 1)
                repeats.expect(None)
                repeats.expect(template)
                stream.peer.send(framed(b"x"))
                assert compiled.read_ready(epoll, streams, distance_ns()) == []
                stream.peer.send(b"odd")
                plain.peer.send(b"x")
                os.write(writing, b"x")
                assert len(compiled.read_ready(epoll, streams, distance_ns())) == 3
                plain.ours.recv(100)
                os.read(reading, 100)
            stream.times.clear()

        go(10)
        blocks, references = sys.getallocatedblocks(), [sys.getrefcount(value) for value in shared]
        go(1_000)
        assert sys.getallocatedblocks() - blocks < 100
        for value, before in zip(shared, references, strict=True):
            assert abs(sys.getrefcount(value) - before) < 100, value
    plain.ours.close()
    plain.peer.close()
    os.close(reading)
    os.close(writing)


@pytest.mark.slow
@pytest.mark.parametrize("reason", ["not built", "not wanted"])
def test_python_stands_in(reason: str) -> None:
    """Where the compiled module cannot be imported, or the variable asks for it."""
    script = "import sys\n"
    if reason == "not built":
        script += "sys.modules['distbench.wire._hot_path'] = None\n"
    script += "from distbench.wire import hot_path; print(hot_path.in_use is hot_path.PYTHON, hot_path.in_use.is_compiled)"
    environment = {**os.environ, "DISTBENCH_NO_EXTENSION": "1" if reason == "not wanted" else ""}
    told = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert told.stdout.split() == ["True", "False"]
