"""The arithmetic behind ServerView (floor F3, pure): which readings a period has, deltas, means, sums over targets."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from distbench.analysis.server_series import Floats, TargetSeries, known
from distbench.telemetry.detect import Continuity, continuity_of_counter, worst
from distbench.telemetry.vocabulary import TRAFFIC_COUNTERS, Quantity

_PLATEAU_TOLERANCE_RATIO = 0.05
# With fewer requests than this, one of them more or less is no plateau any more.
_PLATEAU_TOLERANCE_FROM = 8


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """The times of a level, ns since the run's epoch: its window, and the settled moments before and after it."""

    window_ns: tuple[int, int]
    settled_ns: tuple[int, int]

    def in_window(self, times_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Tell which readings lie inside the window, its ends included."""
        inside: npt.NDArray[np.bool_] = (times_ns >= self.window_ns[0]) & (times_ns <= self.window_ns[1])
        return inside

    def ends(self, times_ns: npt.NDArray[np.int64], *, in_window: bool) -> tuple[int, int] | None:
        """Return the indices of the readings that a delta goes between; None where there are no two."""
        if in_window:
            inside = np.flatnonzero(self.in_window(times_ns))
            return (int(inside[0]), int(inside[-1])) if inside.size > 1 else None
        first = int(np.searchsorted(times_ns, self.settled_ns[0], side="right")) - 1
        last = int(np.searchsorted(times_ns, self.settled_ns[1], side="right")) - 1
        # Without a reading before the level, its first one is the best there is.
        first = max(first, 0)
        return (first, last) if last > first else None

    def cut(self, target: TargetSeries) -> TargetSeries:
        """Return the target with its continuity judged over this level alone."""
        ends = self.ends(target.times_ns, in_window=False)
        if ends is None or target.continuity is Continuity.STEADY:
            return target
        span = slice(ends[0], ends[1] + 1)
        verdicts = [
            continuity_of_counter(known(values[span]))
            for quantity in TRAFFIC_COUNTERS
            for values in target.counters.get(quantity, {}).values()
        ]
        # A balancer is a fact of the target, whatever a short level shows of it.
        if target.continuity is Continuity.MIXED:
            return target
        return dataclasses.replace(target, continuity=worst(verdicts))


def delta(
    target: TargetSeries, series: Mapping[str, Floats] | None, period: Period, *, in_window: bool = False
) -> float | None:
    """
    Return how much a counter grew over a level, all engines of a target together.

    Returns:
        None where it is not exported, has no two readings, or fell on the way (a restart).
    """
    ends = period.ends(target.times_ns, in_window=in_window)
    if not series or ends is None:
        return None
    total = 0.0
    for values in series.values():
        span = values[ends[0] : ends[1] + 1]
        present = span[~np.isnan(span)]
        if not present.size or (np.diff(present) < 0).any():
            return None
        # A labelled counter appears with its first event: before that it was zero.
        start = 0.0 if np.isnan(span[0]) else present[0]
        total += float(present[-1] - start)
    return total


def observed_mean(targets: Sequence[TargetSeries], quantity: Quantity, period: Period) -> float | None:
    """Return Δsum / Δcount over all targets, inside the window or else over the level; None without an observation."""
    for in_window in (True, False):
        sums = [delta(t, t.sums.get(quantity), period, in_window=in_window) for t in targets]
        counts = [delta(t, t.counts.get(quantity), period, in_window=in_window) for t in targets]
        total = sum(value for value in sums if value is not None)
        count = sum(value for value in counts if value is not None)
        if None not in sums and None not in counts and count > 0:
            return total / count
    return None


def step_shares(targets: Sequence[TargetSeries], period: Period) -> tuple[tuple[float, float], ...]:
    """
    Return how large the engine steps inside the window were, all targets together.

    Returns:
        (tokens, share of the steps with so many or fewer), ascending; empty where a target does not export it or made no step.
    """
    bounds = sorted(set.intersection(*(set(target.step_buckets) for target in targets)))
    steps = []
    for bound in bounds:
        parts = [delta(t, t.step_buckets[bound], period, in_window=True) for t in targets]
        if any(part is None for part in parts):
            return ()
        steps.append(sum(part for part in parts if part is not None))
    if not steps or steps[-1] <= 0:
        return ()
    return tuple((bound, count / steps[-1]) for bound, count in zip(bounds, steps, strict=True))


def gauge_grid(targets: Sequence[TargetSeries], quantity: Quantity, period: Period) -> Floats | None:
    """
    Return a gauge summed over all engines of all targets at each scrape inside the window, shape (n,).

    Targets are scraped at moments of their own: each scrape of any target is one entry, with the last known value of the others.

    Returns:
        None where a target does not export it or has no reading inside the window.
    """
    events: list[tuple[int, str, float]] = []
    for target in targets:
        series = target.gauges.get(quantity)
        if not series:
            return None
        total = np.sum(list(series.values()), axis=0)
        usable = period.in_window(target.times_ns) & ~np.isnan(total)
        if not usable.any():
            return None
        times = target.times_ns[usable].tolist()
        events += [(t, target.target, v) for t, v in zip(times, total[usable].tolist(), strict=True)]
    latest: dict[str, float] = {}
    sums = []
    for _, name, value in sorted(events):
        latest[name] = value
        if len(latest) == len(targets):
            sums.append(sum(latest.values()))
    return np.array(sums)


def plateau_ratio(values: Floats) -> float:
    """Return the share of the readings that are at the highest one, but for 5 % of it or, from 8 on, one request."""
    top = float(values.max())
    slack = max(_PLATEAU_TOLERANCE_RATIO * top, 1.0 if top >= _PLATEAU_TOLERANCE_FROM else 0.0)
    return float((values >= top - slack).mean())
