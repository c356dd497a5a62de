"""
When a server stands still (floor F2, pure).

Counters of a level are compared between two moments at which nothing was under way. A server is taken to stand still when two readings
in a row have the same counters and nothing runs or waits. Gauges can lie: vLLM refreshes them with its steps only, so that after an
abort the last one stays. Counters that stood still for several readings are therefore believed against the gauges.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from distbench.telemetry.exposition import Sample
from distbench.telemetry.vocabulary import TRAFFIC_COUNTERS, Quantity, resolve

_READINGS_AGAINST_GAUGES = 6


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CounterState:
    """
    The short form of one scrape.

    Attributes:
        time_ns: Relative to the run's epoch.
        counters: Sum over all series of each traffic counter that is exported.
        running, waiting: Requests; None where not exported.
        kv_usage: Mean over the engines, 0..1; None where not exported.
    """

    time_ns: int
    counters: tuple[tuple[Quantity, float], ...]
    running: float | None
    waiting: float | None
    kv_usage: float | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """
    The end of settling.

    Attributes:
        time_ns: When, relative to the run's epoch; the last reading of each target at or before it is the settled one.
        steady: Whether every server stood still.
        busy: Targets whose counters kept moving: someone else's traffic, or requests that go on.
        silent: Targets that never answered.
    """

    time_ns: int
    steady: bool
    busy: tuple[str, ...]
    silent: tuple[str, ...]


def counter_state(time_ns: int, samples: Iterable[Sample]) -> CounterState:
    """Return the short form of a scrape."""
    values: dict[str, list[float]] = {}
    for sample in samples:
        if sample.value is not None:
            values.setdefault(sample.name, []).append(sample.value)
    chosen = resolve(values)

    def total(quantity: Quantity) -> float | None:
        name = chosen.get(quantity)
        return None if name is None else sum(values[name])

    kv_name = chosen.get(Quantity.KV_USAGE)
    return CounterState(
        time_ns=time_ns,
        counters=tuple((q, sum(values[chosen[q]])) for q in TRAFFIC_COUNTERS if q in chosen),
        running=total(Quantity.RUNNING),
        waiting=total(Quantity.WAITING),
        kv_usage=None if kv_name is None else sum(values[kv_name]) / len(values[kv_name]),
    )


class SettleTracker:
    """Follows one server's readings until it stands still."""

    def __init__(self) -> None:
        self._last: CounterState | None = None
        self._equal = 0

    @property
    def answered(self) -> bool:
        """Whether there was any reading."""
        return self._last is not None

    @property
    def is_steady(self) -> bool:
        """Whether the server stands still; a server that exports no traffic counter never does."""
        if self._last is None or not self._last.counters or self._equal < 1:
            return False
        idle = not self._last.running and not self._last.waiting
        return idle or self._equal + 1 >= _READINGS_AGAINST_GAUGES

    def add(self, state: CounterState | None) -> None:
        """Take the next reading; None (a failed scrape) changes nothing."""
        if state is None:
            return
        same = self._last is not None and self._last.counters == state.counters
        self._equal = self._equal + 1 if same else 0
        self._last = state
