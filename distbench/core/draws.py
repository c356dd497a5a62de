"""
Random numbers that are a pure function of what they are for (floor F1).

Each draw is an extendable hash (SHAKE-128) of (seed, purpose, place): no state, no order of calls, the same bytes on every machine,
Python and numpy. That is also cheaper than seeding a generator for every prompt: about a microsecond a draw.
"""

from __future__ import annotations

import array
import hashlib
import struct
import sys
from collections.abc import Sequence

STREAM_SYSTEM = "system"
"""Words of a system message; place: phase, level, prefix group."""
STREAM_USER = "user"
"""Words of a user message; place: phase, level, number of the message."""
STREAM_SYSTEM_LENGTH = "system-length"
"""Length of a system message; place: prefix group. Levels differ in content, never in lengths."""
STREAM_USER_LENGTH = "user-length"
"""Lengths of a user message and its answer; place: number of the message."""
STREAM_BLOCK = "block"
"""Words of a block of a trace's prompt; place: phase, level, lap, hash id."""
STREAM_ARRIVALS = "arrivals"
"""Send times of an open loop; place: level."""
STREAM_CALIBRATION = "calibration"
"""Samples of the vocabulary's check; place: number of the sample."""

_UNIT = 2.0**-64


def draw_bytes(size: int, seed: int, stream: str, *place: int | str) -> bytes:
    """
    Return size pseudo-random bytes.

    Args:
        size: >= 0. A longer draw begins with the bytes of a shorter one.
        seed: Any int.
        stream: The purpose, a STREAM_ constant; streams are independent of each other.
        place: Where in the stream; order matters.
    """
    key = f"{seed}|{stream}|{'|'.join(map(str, place))}"
    return hashlib.shake_128(key.encode()).digest(size)


def draw_u16(count: int, seed: int, stream: str, *place: int | str) -> Sequence[int]:
    """Return count numbers, uniform in 0..65535; arguments as of draw_bytes."""
    numbers = array.array("H", draw_bytes(2 * count, seed, stream, *place))
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def draw_fractions(count: int, seed: int, stream: str, *place: int | str) -> tuple[float, ...]:
    """Return count numbers, uniform and strictly between 0 and 1; arguments as of draw_bytes."""
    words = struct.unpack(f"<{count}Q", draw_bytes(8 * count, seed, stream, *place))
    # The top of the range would round to 1.0, which has no quantile.
    return tuple(min((word + 0.5) * _UNIT, 1.0 - 2.0**-53) for word in words)


def draw_seed(seed: int, stream: str, *place: int | str) -> int:
    """Return a 128-bit seed for a numpy generator, for draws that are made by the array."""
    return int.from_bytes(draw_bytes(16, seed, stream, *place), "little")
