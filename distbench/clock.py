"""
Clocks, and how the clock of one machine is told in that of another (floor F0).

Durations come from one monotonic clock only. A stamp that crosses machines is first turned into nanoseconds since the run's epoch
on the driver's clock, by an offset that was measured, stored and bounded (DESIGN: the fleet).
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol


class Clock(Protocol):
    """What the load loop needs of time; tests give it a virtual one."""

    def monotonic_ns(self) -> int:
        """Return ns of a clock that never steps; its zero means nothing."""
        ...

    async def sleep_until_ns(self, deadline_ns: int) -> None:
        """Return at, or as soon as possible after, the deadline on this clock; at once if it has passed."""
        ...


class SystemClock:
    """CLOCK_MONOTONIC, slept on through the running event loop."""

    # Loops wake with a grain of about 1 ms; the rest of the way is spun in short sleeps of zero, which let others run.
    _SPIN_NS = 1_200_000

    def monotonic_ns(self) -> int:
        """Return ns of CLOCK_MONOTONIC."""
        return time.monotonic_ns()

    async def sleep_until_ns(self, deadline_ns: int) -> None:
        """Sleep to about a millisecond before the deadline, then yield to the loop until it is there."""
        remaining_ns = deadline_ns - time.monotonic_ns()
        while remaining_ns > 0:
            coarse_ns = remaining_ns - self._SPIN_NS
            await asyncio.sleep(coarse_ns / 1e9 if coarse_ns > 0 else 0)
            remaining_ns = deadline_ns - time.monotonic_ns()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ClockOffset:
    """
    How far another process' monotonic clock is ahead of the driver's.

    Attributes:
        offset_ns: remote monotonic - driver monotonic at the same instant.
        error_ns: Bound of the error, half of the fastest round trip; 0 where both read the same clock.
        round_trips: Number of samples behind the estimate; 0 where none was needed.
    """

    offset_ns: int
    error_ns: int
    round_trips: int

    def to_driver_ns(self, remote_ns: int) -> int:
        """Return a remote monotonic stamp on the driver's monotonic clock."""
        return remote_ns - self.offset_ns

    def to_remote_ns(self, driver_ns: int) -> int:
        """Return a driver's monotonic stamp on the remote monotonic clock."""
        return driver_ns + self.offset_ns


SAME_CLOCK = ClockOffset(offset_ns=0, error_ns=0, round_trips=0)


def estimate_offset(samples: Sequence[tuple[int, int, int]], fastest: int = 10) -> ClockOffset:
    """
    Estimate a clock offset from round trips.

    Args:
        samples: (driver ns before the call, remote ns, driver ns after it), one per round trip; at least one.
        fastest: How many of the fastest round trips are averaged; slow ones were delayed on one way and would bias it.

    Returns:
        The offset, with half of the fastest round trip as its bound.

    Raises:
        ValueError: samples is empty.

    Source: Cristian's algorithm with the filter of the network time protocol (keep the fastest round trips).
    """
    if not samples:
        raise ValueError("no round trips to estimate a clock offset from")
    ranked = sorted(samples, key=lambda s: s[2] - s[0])[:fastest]
    offsets = [remote - (before + after) // 2 for before, remote, after in ranked]
    best_before, _, best_after = ranked[0]
    return ClockOffset(
        offset_ns=sum(offsets) // len(offsets),
        error_ns=(best_after - best_before) // 2,
        round_trips=len(samples),
    )


def clock_identity() -> str:
    """
    Return a text that is equal in two processes exactly when they read the same CLOCK_MONOTONIC.

    It joins the boot id of the kernel with the time namespace of the process; where either cannot be read the text is unique
    enough only per machine start, and the offset is then measured instead of taken as zero.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return f"unknown-{time.time_ns()}"
    try:
        namespace = str(Path("/proc/self/ns/time").readlink())
    except OSError:
        namespace = "time:none"
    return f"{boot} {namespace}"
