"""Tests of distbench.clock."""

from __future__ import annotations

import asyncio
import time

import pytest

from distbench.clock import ClockOffset, SystemClock, clock_identity, estimate_offset


def test_offset_comes_from_the_fastest_round_trips() -> None:
    """Slow round trips were delayed on one way and are left out; the bound is half of the fastest."""
    fast = [(1_000, 5_600, 1_200), (2_000, 6_600, 2_200)]  # midpoints 1,100 and 2,100: offset 4,500
    slow = [(3_000, 9_000, 13_000)]
    offset = estimate_offset([*slow, *fast], fastest=2)
    assert offset == ClockOffset(offset_ns=4_500, error_ns=100, round_trips=3)


def test_offset_moves_stamps_both_ways() -> None:
    """A remote clock that is 4,500 ns ahead shows 5,600 when the driver's shows 1,100."""
    offset = ClockOffset(offset_ns=4_500, error_ns=100, round_trips=1)
    assert offset.to_driver_ns(5_600) == 1_100
    assert offset.to_remote_ns(1_100) == 5_600


def test_no_round_trips_is_an_error() -> None:
    """An offset out of nothing would be a lie."""
    with pytest.raises(ValueError, match="no round trips"):
        estimate_offset([])


def test_two_processes_of_a_machine_read_the_same_clock() -> None:
    """The identity is the same text whenever it is asked for on one machine."""
    assert clock_identity() == clock_identity() != ""


def test_sleep_reaches_its_deadline_and_not_before() -> None:
    """Sleeping until an absolute time never returns early, and at once for a time that has passed."""

    async def sleep() -> int:
        clock = SystemClock()
        deadline_ns = clock.monotonic_ns() + 15_000_000
        await clock.sleep_until_ns(deadline_ns)
        await clock.sleep_until_ns(deadline_ns - 10**9)
        return deadline_ns

    assert asyncio.run(sleep()) <= time.monotonic_ns()
