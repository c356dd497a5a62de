"""
What differs between runs, by how much, and whether chance explains it (floor F3, pure; docs/compare.md explains the rules).

Two levels are compared where connections, packing and pattern are the same; two searches for capacity at their peaks as well. The change
is a ratio, so its interval is made on logarithms: Welch's t over the repeats where both runs have at least two, else a block bootstrap
over the time inside the levels, widened by what repeats of a level scatter by on a quiet server.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from scipy import stats

from distbench.analysis.compare_bootstrap import DRAWS, Floats, level_deviations
from distbench.analysis.compare_metrics import METRICS, Metric
from distbench.analysis.compare_plan import Aspect, Difference, plan_differences
from distbench.analysis.facts import plan_slos
from distbench.analysis.noise import DEFAULT_RELATIVE_ERROR

CONFIDENCE = 0.95
# Three readings that agree by chance do not make a fourth exact.
_LEAST_SD = 0.001
_ARRIVED_TOLERANCE = 0.01
Row = Mapping[str, Any]
Setting = tuple[str, int, float | None, int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Side:
    """
    One run, as far as a comparison needs it.

    Attributes:
        name: How it is called in texts.
        rows: Rows of levels.parquet.
        findings: findings.json; empty where there is none.
        plan: The table of plan.toml.
        server: What is known of server and programs: word -> value.
        requests: Level -> its requests, columns BOOTSTRAP_COLUMNS.
    """

    name: str
    rows: Sequence[Row]
    findings: Mapping[str, Any]
    plan: Mapping[str, Any]
    server: Mapping[str, Any]
    requests: Callable[[int], pa.Table]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """
    One figure in both runs.

    Attributes:
        metric: The figure.
        baseline, candidate: Means over the valid readings; None: not measured.
        ratio: candidate / baseline - 1; None where one is missing or zero.
        low, high: 95 % interval of ratio; None: there is too little to tell.
        method: repeats | time | None.
        significant: Whether the interval leaves out zero; None without one.
    """

    metric: Metric
    baseline: float | None
    candidate: float | None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    method: str | None = None
    significant: bool | None = None

    @property
    def judgement(self) -> str:
        """Return better, worse or same (not significant); unknown without an interval."""
        if self.significant is None or self.ratio is None:
            return "unknown"
        if not self.significant:
            return "same"
        return "better" if (self.ratio > 0) == self.metric.is_rate else "worse"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """
    One place where runs are compared.

    Attributes:
        label: In words.
        is_peak: Peak against peak, whatever the connections.
        connections: In both runs; of the baseline where is_peak.
        changes: Metric name -> change.
        all_failed: Whether the candidate ran here and no request was answered.
        notes: What limits this comparison.
    """

    label: str
    is_peak: bool
    connections: int
    changes: Mapping[str, Change]
    all_failed: bool = False
    notes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """
    A candidate against the baseline.

    Attributes:
        baseline, candidate: Names of the runs.
        differences: Of plan and server, the workload first.
        same_workload: Whether what was asked is the same; else the figures compare workloads as much as servers.
        points: The peaks first, then the settings that both measured, by connections.
        notes: What a reader should know before the figures.
    """

    baseline: str
    candidate: str
    differences: tuple[Difference, ...]
    same_workload: bool
    points: tuple[Point, ...]
    notes: tuple[str, ...]


def compare(baseline: Side, candidate: Side) -> Comparison:
    """Compare two runs; figures that only one of them has are left out."""
    differences = plan_differences(baseline.plan, candidate.plan, baseline.server, candidate.server)
    same = not any(difference.aspect is Aspect.WORKLOAD for difference in differences)
    sides = (_Readings(baseline), _Readings(candidate))
    points = [*_peak_points(*sides), *_setting_points(*sides)]
    notes = (
        [] if same else ["The workloads differ: the figures compare what was asked as much as the servers."]
    )
    if not points:
        notes.append(
            "The runs have no setting in common (connections, packing, pattern): nothing to compare."
        )
    return Comparison(
        baseline=baseline.name,
        candidate=candidate.name,
        differences=tuple(differences),
        same_workload=same,
        points=tuple(points),
        notes=tuple(notes),
    )


def latency_point(comparison: Comparison) -> Point | None:
    """
    Return where two searches for capacity compare their latencies; None where there is no such place.

    That is the largest number of connections that both measured and that is not above the baseline's peak.
    """
    peaks = [point for point in comparison.points if point.is_peak]
    below = [
        p for p in comparison.points if not p.is_peak and peaks and p.connections <= peaks[0].connections
    ]
    return below[-1] if below else None


def headline_points(comparison: Comparison) -> list[Point]:
    """Return the points to show in full: the peaks and where their latencies are compared, else the first setting."""
    telling = [*(point for point in comparison.points if point.is_peak), latency_point(comparison)]
    return [point for point in telling if point is not None] or list(comparison.points[:1])


class _Readings:
    """The levels of one run by setting, and what their figures may be off by; each level is read at most once."""

    def __init__(self, side: Side) -> None:
        self.side = side
        self.by_setting: dict[Setting, list[Row]] = {}
        self._deviations: dict[int, Mapping[str, Floats]] = {}
        for row in side.rows:
            self.by_setting.setdefault(_setting(row), []).append(row)

    def deviations(self, row: Row, column: str) -> Floats | None:
        level = int(row["level"])
        if level not in self._deviations:
            window = (row["window_start_ns"], row["window_end_ns"])
            self._deviations[level] = level_deviations(
                self.side.requests(level), window, level, plan_slos(self.side.plan)
            )
        return self._deviations[level].get(column)

    def at_peak(self) -> list[Row]:
        """Return the readings at the peak, without the one that chose it where enough others are there."""
        peak = self.side.findings.get("peak") or {}
        rows = [
            row for row in self.side.rows if row["valid"] and row["connections"] == peak.get("connections")
        ]
        repeats = [row for row in rows if row["repeat"] > 0]
        return repeats if len(repeats) >= 2 else rows


def _setting(row: Row) -> Setting:
    return (row["pattern"], row["users_per_request"], row["offered_rate"], row["connections"])


def _peak_points(baseline: _Readings, candidate: _Readings) -> list[Point]:
    before, after = baseline.at_peak(), candidate.at_peak()
    if not before or not after or not len(baseline.by_setting) > 1 < len(candidate.by_setting):
        return []
    counts = (int(before[0]["connections"]), int(after[0]["connections"]))
    notes = [
        f"{readings.side.name} did not reach its ceiling: its peak is a lower bound."
        for readings in (baseline, candidate)
        if readings.side.findings.get("lower_bound")
    ]
    label = f"peak ({counts[0]:,} connections against {counts[1]:,})"
    changes = _changes(baseline, before, candidate, after)
    if counts[0] != counts[1]:  # with other connections a latency is another figure
        changes = {name: change for name, change in changes.items() if change.metric.is_rate}
    return [Point(label=label, is_peak=True, connections=counts[0], changes=changes, notes=tuple(notes))]


def _setting_points(baseline: _Readings, candidate: _Readings) -> list[Point]:
    points = []
    several_shapes = len({(s[0], s[1], s[2]) for s in baseline.by_setting}) > 1
    for setting in sorted(baseline.by_setting, key=lambda s: (s[0], s[1], s[2] or 0.0, s[3])):
        if setting not in candidate.by_setting:
            continue
        before, after = baseline.by_setting[setting], candidate.by_setting[setting]
        label = f"{setting[3]:,} connection{'s' if setting[3] > 1 else ''}"
        if several_shapes:
            label = f"{setting[1]} messages/request, {label}"
        changes = _changes(baseline, _valid(before), candidate, _valid(after))
        notes = _arrived(before, after)
        points.append(
            Point(
                label=label,
                is_peak=False,
                connections=setting[3],
                changes=changes,
                all_failed=not any(row["requests_ok"] for row in after),
                notes=notes,
            )
        )
    return points


def _valid(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["valid"]]


def _arrived(before: Sequence[Row], after: Sequence[Row]) -> tuple[str, ...]:
    """Say where the tokens that the servers really saw differ, whatever the plans say."""
    notes = []
    for column, words in (("prompt_tokens_mean", "prompts"), ("completion_tokens_mean", "answers")):
        a, b = (_mean([row[column] for row in rows if row[column] is not None]) for rows in (before, after))
        if a and b and abs(b / a - 1) > _ARRIVED_TOLERANCE:
            notes.append(f"The {words} differ in length: {a:,.1f} against {b:,.1f} tokens on average.")
    return tuple(notes)


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _changes(
    baseline: _Readings, before: Sequence[Row], candidate: _Readings, after: Sequence[Row]
) -> dict[str, Change]:
    found = {}
    for name, metric in METRICS.items():
        old = [row for row in before if row[metric.column] is not None]
        new = [row for row in after if row[metric.column] is not None]
        if old or new:
            found[name] = _change(metric, baseline, old, candidate, new)
    return found


def _change(
    metric: Metric, baseline: _Readings, old: list[Row], candidate: _Readings, new: list[Row]
) -> Change:
    a, b = (_mean([row[metric.column] for row in rows]) for rows in (old, new))
    if not a or not b or min(row[metric.column] for row in (*old, *new)) <= 0:
        return Change(metric=metric, baseline=a, candidate=b)
    interval: tuple[float, float] | None
    if len(old) >= 2 and len(new) >= 2:
        interval, method = welch_interval(*([row[metric.column] for row in r] for r in (old, new))), "repeats"
    else:
        spread = _spread(metric, (baseline, old), (candidate, new))
        interval, method = _around(b / a, spread), "time"
    if interval is None:
        return Change(metric=metric, baseline=a, candidate=b, ratio=b / a - 1)
    low, high = interval
    significant = low > 0 or high < 0
    return Change(
        metric=metric,
        baseline=a,
        candidate=b,
        ratio=b / a - 1,
        low=low,
        high=high,
        method=method,
        significant=significant,
    )


def welch_interval(old: Sequence[float], new: Sequence[float]) -> tuple[float, float]:
    """
    Return the 95 % interval of new / old - 1 by Welch's t on the logarithms of the readings.

    Args:
        old: At least two positive readings.
        new: Likewise.
    """
    logs = [np.log(np.asarray(values, np.float64)) for values in (old, new)]
    squares = [max(float(np.var(v, ddof=1)), _LEAST_SD**2) / len(v) for v in logs]
    error = math.sqrt(sum(squares))
    degrees = sum(squares) ** 2 / sum(s**2 / (len(v) - 1) for s, v in zip(squares, logs, strict=True))
    # The mean of logs belongs to the geometric mean; the interval is laid around the ratio of plain means that is shown.
    half = float(stats.t.ppf(0.5 + CONFIDENCE / 2, degrees)) * error
    ratio = float(np.mean(new) / np.mean(old))
    return ratio * math.exp(-half) - 1, ratio * math.exp(half) - 1


def _spread(metric: Metric, *sides: tuple[_Readings, list[Row]]) -> Floats | None:
    """Return draws of log(candidate / baseline) around its estimate; None where a level has none."""
    rng = np.random.default_rng(0xC0FFEE)
    total = np.zeros(DRAWS)
    for sign, (readings, rows) in zip((-1.0, 1.0), sides, strict=True):
        draws = [readings.deviations(row, metric.column) for row in rows]
        known = [d for d in draws if d is not None]
        if not known or len(known) < len(rows):
            return None
        between = rng.normal(0.0, DEFAULT_RELATIVE_ERROR, (len(known), DRAWS))
        shuffled = np.stack([rng.permutation(d) for d in known])
        total += sign * (shuffled + between).mean(axis=0)
    return total


def _around(ratio: float, spread: Floats | None) -> tuple[float, float] | None:
    if spread is None:
        return None
    low, high = np.quantile(spread, [0.5 - CONFIDENCE / 2, 0.5 + CONFIDENCE / 2])
    return ratio * math.exp(-float(high)) - 1, ratio * math.exp(-float(low)) - 1
