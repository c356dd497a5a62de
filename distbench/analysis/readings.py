"""Readings of the capacity search: what the ladder and the ceiling know of a level (floor F3, pure)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence

from distbench.analysis.noise import DEFAULT_RELATIVE_ERROR

# A level in which more than half of the requests failed measures how fast the server fails.
MAX_FAILED_RATIO = 0.5
# One reading tells a setting's rate; where it cannot be judged it is taken once more, not for ever.
MAX_ATTEMPTS = 2


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """
    One measured level.

    Attributes:
        level: Number of the level in the run; readings are ordered by it.
        connections: Over all clients.
        repeat: 0 for the first visit of the setting.
        rate: What is maximised, output tokens/s; None where nothing was measured.
        request_rate: Requests/s; None likewise.
        rate_error: Standard error of rate from inside the level (Stability.rate_error); None: not known.
        valid: Whether the level's window is long enough to be judged.
        stable: Stability.stable; None: not judged.
        ok, failed: Requests.
        duration_s: Of the whole level.
        good_ratio: Share of the finished requests that met every SLO; None without SLOs.
        goodput_rate: Good requests/s; None without SLOs.
    """

    level: int
    connections: int
    repeat: int = 0
    rate: float | None
    request_rate: float | None = None
    rate_error: float | None = None
    valid: bool = True
    stable: bool | None = None
    ok: int = 1
    failed: int = 0
    duration_s: float | None = None
    good_ratio: float | None = None
    goodput_rate: float | None = None

    @property
    def mostly_failed(self) -> bool:
        """Whether more than half of the requests failed."""
        return self.failed > MAX_FAILED_RATIO * (self.ok + self.failed)

    @property
    def counts(self) -> bool:
        """Whether its rate is a rate at all: valid, above zero, and not of a failing server."""
        return self.valid and self.rate is not None and self.rate > 0 and not self.mostly_failed

    @property
    def error(self) -> float:
        """Standard error of rate, the assumed one where the level tells none."""
        rate = self.rate or 0.0
        return max(self.rate_error or 0.0, DEFAULT_RELATIVE_ERROR * rate)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """
    All readings at one number of connections, in order.

    Attributes:
        connections: The setting.
        readings: Every attempt.
        judged: The reading that the search goes by: the first that counts and is stable, of the first two attempts; else the last
            of them that counts; None where none does, or where another attempt is due.
        repeats: The attempts after it.
    """

    connections: int
    readings: tuple[Reading, ...]
    judged: Reading | None
    repeats: tuple[Reading, ...]

    @property
    def rate(self) -> float | None:
        """Rate of the judged reading."""
        return None if self.judged is None else self.judged.rate

    @property
    def used(self) -> tuple[Reading, ...]:
        """All readings that count and are steady; drifting ones only where there are no others."""
        return _steady_first(self.readings)

    @property
    def used_repeats(self) -> tuple[Reading, ...]:
        """The same of the repeats: without the reading that selected the setting."""
        return _steady_first(self.repeats)

    @property
    def all_rates(self) -> list[float]:
        """Rates of the readings in use."""
        return [r.rate for r in self.used if r.rate is not None]

    @property
    def repeat_rates(self) -> list[float]:
        """Rates of the repeats in use."""
        return [r.rate for r in self.used_repeats if r.rate is not None]

    @property
    def steady_repeats(self) -> int:
        """Repeats that count and are steady."""
        return sum(r.counts and r.stable is not False for r in self.repeats)


def _steady_first(readings: Sequence[Reading]) -> tuple[Reading, ...]:
    counted = tuple(r for r in readings if r.counts)
    return tuple(r for r in counted if r.stable is not False) or counted


def settings_of(history: Iterable[Reading]) -> Mapping[int, Setting]:
    """Group readings by connections, ascending."""
    grouped: dict[int, list[Reading]] = {}
    for reading in sorted(history, key=lambda r: r.level):
        grouped.setdefault(reading.connections, []).append(reading)
    return {connections: _setting(connections, grouped[connections]) for connections in sorted(grouped)}


def _setting(connections: int, readings: Sequence[Reading]) -> Setting:
    first = readings[:MAX_ATTEMPTS]
    steady = [r for r in first if r.counts and r.stable is not False]
    usable = [r for r in first if r.counts]
    judged = None
    if steady:
        judged = steady[0]
    elif usable and len(first) == MAX_ATTEMPTS:
        judged = usable[-1]
    repeats = () if judged is None else tuple(r for r in readings if r.level > judged.level)
    return Setting(connections=connections, readings=tuple(readings), judged=judged, repeats=repeats)


def gain_beyond_noise(reading: Reading, reference: Reading) -> float:
    """Return by which share a reading exceeds another at the least (see gain)."""
    return gain(reading.rate or 0.0, reading.error, reference.rate or 0.0, reference.error)


def gain(rate: float, error: float, base: float, base_error: float) -> float:
    """
    Return by which share a rate exceeds another at the least: two standard errors taken off.

    The allowance is at most 10 %: two readings that scatter more than that say nothing, and the search would never end well.

    Args:
        rate: The one.
        error: Its standard error.
        base: The other.
        base_error: Its standard error.
    """
    if base <= 0:
        return math.inf if rate > 0 else 0.0
    noise = 2 * math.hypot(error / base, base_error * rate / base**2)
    return rate / base - 1 - min(noise, 0.10)
