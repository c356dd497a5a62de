"""
The hot path (floor F2): many sockets that have something to read are read first, and what came is looked at after that.

Two loops instead of one over both, since the kernel's code and the interpreter's push each other out of the processor's caches. A
time of the sweep is that of the end of its reading, which tells a read's lag up to a sweep's length too long; the arrival itself
is the kernel's stamp. Nothing is parsed, decoded or logged here, and nothing waits here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic_ns
from typing import Any, Protocol

from distbench.wire.repeats import Repeats
from distbench.wire.stamps import ANCILLARY_BYTES, MAX_PLAUSIBLE_LAG_NS, arrivals_ns, process_clocks

READ_BYTES = 16_384
"""Most that is read at a time."""


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


class Sweep:
    """Reads of several streams at a time."""

    def __init__(self, on_bug: Callable[[Exception], None]) -> None:
        """Prepare; on_bug learns of an exception in a stream's own code, which costs no other stream its read."""
        self._on_bug = on_bug
        self._distance = process_clocks()

    def read(self, streams: Sequence[Stream]) -> None:
        """Take one read off each of some streams, all different; some dozens, so that their lag is told well enough."""
        reads: list[Any] = []
        add = reads.append
        for stream in streams:
            try:
                recvmsg = stream.recvmsg  # calling it in place would search the class for a method first
                add(recvmsg(READ_BYTES, ANCILLARY_BYTES))
            except OSError as error:
                add((error, (), 0, None))
        arrivals = arrivals_ns([read[1] for read in reads], self._distance.check())
        now_ns = monotonic_ns()
        earliest_ns = now_ns - MAX_PLAUSIBLE_LAG_NS
        for stream, (data, ancillary, _, _), stamp_ns in zip(streams, reads, arrivals, strict=True):
            try:
                repeats = stream.repeats
                if (
                    repeats is not None
                    and earliest_ns <= stamp_ns <= now_ns
                    and repeats.take(data, stamp_ns, now_ns - stamp_ns)
                ):
                    continue
                if type(data) is bytes:
                    stream.take_read(data, ancillary)
                else:
                    stream.take_error(data)
            except Exception as error:
                self._on_bug(error)
