"""
Receive times taken by the kernel (floor F2).

SO_TIMESTAMPNS makes the kernel note, on CLOCK_REALTIME, when a segment came in; recvmsg hands that out beside the bytes. A read of
several segments bears the stamp of the last one. The stamp is moved to the monotonic clock by the distance between the two
clocks, which is measured with care once and checked at every read: a single pair of readings is off by as long as the process was
kept from the core between them, which under load is milliseconds.
"""

from __future__ import annotations

import functools
import socket
import struct
import sys
import time
from collections.abc import Sequence
from time import monotonic_ns, time_ns
from typing import Any

import numpy as np

from distbench.units import NS_PER_S

ANCILLARY_BYTES = socket.CMSG_SPACE(16)
"""Room for one stamp beside the bytes of a read."""

MAX_PLAUSIBLE_LAG_NS = 1_000_000_000
"""A stamp older than this, or from the future, is not believed; the user-space time stands in."""

MAX_CLOCK_DRIFT_NS = 50_000
"""A reading of the clocks' distance that is further off than this is taken again with care."""

unpack_timespec = struct.Struct("qq").unpack
"""Seconds and nanoseconds of CLOCK_REALTIME from the data of a stamp."""

_SO_TIMESTAMPNS = 35
_NO_STAMP = bytes(16)
# Stamps below which numpy costs more than it saves.
_FEW = 12
_CAREFUL_READINGS = 5
_WARM_UP_TRIES = 40
_WARM_UP_PAUSE_S = 0.0005


def enable(sock: socket.socket) -> bool:
    """Ask the kernel to stamp what arrives; return whether it agreed. Where not, reads bear user-space times."""
    if not sys.platform.startswith("linux") or struct.calcsize("qq") != 16:
        return False
    try:
        sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
    except OSError:
        return False
    return True


@functools.cache
def keep_stamping() -> bool:
    """
    Make this machine's kernel stamp segments from now on; return whether it does.

    The kernel begins to stamp some time after the first socket asks for it and stops with the last one: what arrives in between
    bears no stamp. So one connection of this process with itself, on loopback, asks first, is tried until a stamp comes, and stays
    open as long as the process. It costs a millisecond, once.
    """
    try:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen(1)
            near = socket.create_connection(listener.getsockname())
            far, _ = listener.accept()
    except OSError:
        return False
    is_stamping = enable(near) and any(_is_stamped(near, far) for _ in range(_WARM_UP_TRIES))
    far.close()
    if is_stamping:
        near.detach()  # the descriptor outlives the object on purpose
    else:
        near.close()
    return is_stamping


def _is_stamped(near: socket.socket, far: socket.socket) -> bool:
    far.send(b"?")
    ancillary = near.recvmsg(1, ANCILLARY_BYTES)[1]
    if not ancillary:
        time.sleep(_WARM_UP_PAUSE_S)
    return bool(ancillary)


def monotonic_minus_realtime_ns() -> int:
    """
    Measure how far CLOCK_MONOTONIC is ahead of CLOCK_REALTIME (a large negative number).

    Of several tries the one counts whose two monotonic readings around the wall reading lie closest together, so that losing the
    core in between does not enter.
    """
    best_span_ns, best_ns = None, 0
    for _ in range(_CAREFUL_READINGS):
        before_ns = monotonic_ns()
        wall_ns = time_ns()
        after_ns = monotonic_ns()
        span_ns = after_ns - before_ns
        if best_span_ns is None or span_ns < best_span_ns:
            best_span_ns, best_ns = span_ns, (before_ns + after_ns) // 2 - wall_ns
    return best_ns


class ClockDistance:
    """
    How far CLOCK_MONOTONIC is ahead of CLOCK_REALTIME, measured with care once and checked whenever it is asked for.

    Attributes:
        now_ns: The distance, as found last.
    """

    __slots__ = ("now_ns",)

    def __init__(self) -> None:
        self.now_ns = monotonic_minus_realtime_ns()

    def check(self) -> int:
        """Return the distance, measured again where a single reading shows that it has changed (a step of the wall clock)."""
        # Losing the core between the two clock readings can only make their distance look too small.
        distance_ns = monotonic_ns() - time_ns()
        if distance_ns > self.now_ns:
            self.now_ns = distance_ns
        elif self.now_ns - distance_ns > MAX_CLOCK_DRIFT_NS:
            self.now_ns = monotonic_minus_realtime_ns()
        return self.now_ns


@functools.cache
def process_clocks() -> ClockDistance:
    """Return the distance of this process' clocks, one for all: each reader would have to find a step of the wall clock by itself."""
    return ClockDistance()


def arrivals_ns(ancillaries: Sequence[list[Any]], distance_ns: int) -> list[int]:
    """
    Return the kernel's stamps of several reads on CLOCK_MONOTONIC.

    Args:
        ancillaries: What each recvmsg gave beside the bytes.
        distance_ns: CLOCK_MONOTONIC minus CLOCK_REALTIME.

    Returns:
        Same length; where a read bore no stamp, a time that is not plausible.
    """
    stamps = [ancillary[0][2] if ancillary else _NO_STAMP for ancillary in ancillaries]
    if len(stamps) < _FEW:
        return [
            seconds * NS_PER_S + (nanoseconds + distance_ns)
            for seconds, nanoseconds in map(unpack_timespec, stamps)
        ]
    pairs = np.frombuffer(b"".join(stamps), np.int64)
    moved: list[int] = (pairs[::2] * NS_PER_S + (pairs[1::2] + distance_ns)).tolist()
    return moved


class ReadClock:
    """
    Tells for each read of one connection when its bytes arrived.

    Attributes:
        is_user: At least one read since reset() bore no believable kernel stamp.
        worst_lag_ns: Longest delay between a kernel stamp and its reading since reset(); -1 where there was none.
    """

    __slots__ = ("_distance", "is_user", "worst_lag_ns")

    def __init__(self, distance: ClockDistance | None = None) -> None:
        """Prepare; connections of one process may share the distance of its clocks."""
        self._distance = ClockDistance() if distance is None else distance
        self.is_user = False
        self.worst_lag_ns = -1

    def reset(self) -> None:
        """Begin a new request."""
        self.is_user = False
        self.worst_lag_ns = -1

    def arrival_ns(self, ancillary: list[Any]) -> int:
        """
        Return the arrival of a read on CLOCK_MONOTONIC; call it right after the read.

        Args:
            ancillary: What recvmsg gave beside the bytes; empty where the kernel stamps nothing.
        """
        now_ns = monotonic_ns()
        if ancillary:
            seconds, nanoseconds = unpack_timespec(ancillary[0][2])
            lag_ns: int = now_ns - (seconds * NS_PER_S + nanoseconds + self._distance.check())
            if -MAX_CLOCK_DRIFT_NS <= lag_ns <= MAX_PLAUSIBLE_LAG_NS:
                if lag_ns > self.worst_lag_ns:
                    self.worst_lag_ns = lag_ns
                return now_ns - lag_ns if lag_ns > 0 else now_ns
        self.is_user = True
        return now_ns
