"""
Is a candidate worse than what is accepted? (floor F3, pure)

The rule: a gate is missed where the change goes beyond its bound AND is significant (its 95 % interval leaves out zero). Where the
baseline has a figure and every request of the candidate failed, that is a regression as well. Where it cannot be
told at all (no level in common, too short), the gate does not pass in silence: it is not judged.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from enum import StrEnum

from distbench.analysis.compare import Change, Comparison, Point, latency_point
from distbench.analysis.compare_metrics import Gate


class Outcome(StrEnum):
    """What became of a gate."""

    PASSED = "passed"
    REGRESSION = "regression"
    NOT_SIGNIFICANT = "not_significant"
    NOT_JUDGED = "not_judged"


@dataclasses.dataclass(frozen=True, slots=True)
class GateResult:
    """One gate at one place; reason is a sentence."""

    gate: Gate
    candidate: str
    place: str
    outcome: Outcome
    reason: str


def judge_gates(comparison: Comparison, gates: Sequence[Gate]) -> list[GateResult]:
    """Judge every gate at every place where it counts."""
    return [result for gate in gates for result in _judge(comparison, gate)]


def places(comparison: Comparison, gate: Gate) -> list[Point]:
    """
    Return where a gate counts.

    With @CONNECTIONS: there. Else, for searches of capacity: rates at the peaks, latencies at the largest number of connections that both
    runs measured and that is not above the baseline's peak. Else: at every setting that both measured.
    """
    settings = [point for point in comparison.points if not point.is_peak]
    if gate.connections is not None:
        return [point for point in settings if point.connections == gate.connections]
    peaks = [point for point in comparison.points if point.is_peak]
    if not peaks:
        return settings
    if gate.metric.is_rate:
        return peaks
    point = latency_point(comparison)
    return [] if point is None else [point]


def _judge(comparison: Comparison, gate: Gate) -> list[GateResult]:
    found = places(comparison, gate)
    if not found:
        where = "no setting is" if gate.connections is None else f"{gate.connections} connections are not"
        reason = f"{where} in both runs"
        return [GateResult(gate, comparison.candidate, "-", Outcome.NOT_JUDGED, reason)]
    results = []
    for point in found:
        outcome, reason = _at(point, gate)
        results.append(GateResult(gate, comparison.candidate, point.label, outcome, reason))
    return results


def _at(point: Point, gate: Gate) -> tuple[Outcome, str]:
    change = point.changes.get(gate.metric.name)
    if change is None or change.baseline is None:
        return Outcome.NOT_JUDGED, "the baseline has no valid figure"
    if point.all_failed:
        return Outcome.REGRESSION, "every request of the candidate failed"
    if change.candidate is None:
        return Outcome.NOT_JUDGED, "the candidate has no valid figure"
    if change.ratio is None:
        return Outcome.NOT_JUDGED, "a figure is zero: there is no ratio"
    beyond = _beyond(change, gate)
    span = "" if change.low is None or change.high is None else f" ({change.low:+.1%} to {change.high:+.1%})"
    told = f"{change.ratio:+.1%}{span}"
    if change.significant is None:
        return Outcome.NOT_JUDGED, f"{told}, but one short reading has no interval: repeat, or measure longer"
    if not beyond:
        return Outcome.PASSED, told
    if change.significant:
        return Outcome.REGRESSION, told
    return Outcome.NOT_SIGNIFICANT, f"{told}: beyond the bound, but chance explains it; repeat to know"


def _beyond(change: Change, gate: Gate) -> bool:
    worse = -1.0 if gate.metric.is_rate else 1.0
    if gate.ratio is not None and change.ratio is not None:
        return worse * change.ratio > gate.ratio
    if gate.seconds is not None and change.baseline is not None and change.candidate is not None:
        return worse * (change.candidate - change.baseline) > gate.seconds
    return False
