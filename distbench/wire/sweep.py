"""
The hot path (floor F2): of many sockets that are ready all are read first, and what came is looked at after that.

Two loops instead of one over both, since the kernel's code and the interpreter's push each other out of the processor's caches. A
time of the sweep is that of the end of its reading, which tells a read's lag up to a sweep's length too long; the arrival itself
is the kernel's stamp. Nothing is parsed, decoded or logged here, and nothing waits here.

hot_path.py puts compiled code in its place where there is some.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Sequence
from time import monotonic_ns
from typing import Any, Protocol

from distbench.wire.repeats import Repeats
from distbench.wire.stamps import ANCILLARY_BYTES, MAX_PLAUSIBLE_LAG_NS, arrivals_ns

READ_BYTES = 16_384
"""Most that is read at a time."""

# Events taken at a time: few enough that the loop's own timers are not kept waiting for longer than some milliseconds.
_EVENTS_AT_ONCE = 256
# Streams read in one sweep: half a millisecond of reading.
_STREAMS_AT_ONCE = 64


class Stream(Protocol):
    """A socket with kernel stamps whose bytes are the response's, not encrypted."""

    recvmsg: Callable[[int, int], Any]
    repeats: Repeats | None

    def take_read(self, data: bytes, ancillary: list[Any]) -> bool:
        """Take what one read gave, whatever it is."""
        ...

    def take_error(self, error: OSError) -> None:
        """Take the failure of a read; one that only says that nothing is there is none."""
        ...


Left = tuple[int, int, bytes | OSError | None, list[Any]]
"""
What a sweep leaves to be looked at: the descriptor; its events; what its stream's read gave, or how it failed, or None where nothing
was read; what recvmsg gave beside the bytes.
"""


def read_ready(epoll: select.epoll, streams: dict[int, Stream], distance_ns: int) -> list[Left]:
    """
    Take one read off each stream that has bytes and whose peer has not closed, and count the repeats among the reads.

    Args:
        epoll: Of all sockets, edge-triggered; select.epoll's own use of it.
        streams: By descriptor; the other sockets of the epoll are not read here.
        distance_ns: CLOCK_MONOTONIC minus CLOCK_REALTIME.

    Returns:
        All that was no repeat, at most once for each descriptor. It must be looked at before the next call.
    """
    left: list[Left] = []
    ready: list[tuple[int, Stream]] = []
    for fd, events in epoll.poll(0, _EVENTS_AT_ONCE):
        stream = streams.get(fd) if events == select.EPOLLIN else None
        if stream is None:
            left.append((fd, events, None, []))
        else:
            ready.append((fd, stream))
    for first in range(0, len(ready), _STREAMS_AT_ONCE):
        _sweep(ready[first : first + _STREAMS_AT_ONCE], distance_ns, left)
    return left


def _sweep(streams: Sequence[tuple[int, Stream]], distance_ns: int, left: list[Left]) -> None:
    """Take one read off each of some streams; some dozens, so that their lag is told well enough."""
    reads: list[Any] = []
    add = reads.append
    for _, stream in streams:
        try:
            recvmsg = stream.recvmsg  # calling it in place would search the class for a method first
            add(recvmsg(READ_BYTES, ANCILLARY_BYTES))
        except OSError as error:
            add((error, [], 0, None))
    arrivals = arrivals_ns([read[1] for read in reads], distance_ns)
    now_ns = monotonic_ns()
    earliest_ns = now_ns - MAX_PLAUSIBLE_LAG_NS
    for (fd, stream), (data, ancillary, _, _), stamp_ns in zip(streams, reads, arrivals, strict=True):
        repeats = stream.repeats
        if (
            repeats is None
            or not earliest_ns <= stamp_ns <= now_ns
            or not repeats.take(data, stamp_ns, now_ns - stamp_ns)
        ):
            left.append((fd, select.EPOLLIN, data, ancillary))
