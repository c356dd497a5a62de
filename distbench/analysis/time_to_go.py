"""How long the rest of a capacity search will take (floor F3, pure): the search played on, at its shortest and at its longest."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from distbench.analysis.ladder import LadderSettings, Measure, next_step
from distbench.analysis.readings import Reading, settings_of

_MAX_LEVELS = 200


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TimeToGo:
    """
    How much is left, between two bounds.

    Attributes:
        levels_min, levels_max: Levels to be measured.
        seconds_min, seconds_max: None before anything was measured.
    """

    levels_min: int
    levels_max: int
    seconds_min: float | None
    seconds_max: float | None


def time_to_go(
    history: Sequence[Reading],
    settings: LadderSettings,
    requests_at: Callable[[int], int],
    overhead_s: float = 3.0,
) -> TimeToGo:
    """
    Estimate what is left of a search.

    Args:
        history: Readings so far.
        settings: Of the search.
        requests_at: Requests, warm-up included, of a level with so many connections.
        overhead_s: Time between two levels.

    Returns:
        Bounds over all places where the peak may be: at the best level so far, or at any rung above it. Up to the peak the rate grows
        in proportion to the connections, behind it it stays.
    """
    rated = [r for r in history if r.counts and r.request_rate]
    best = max(rated, key=lambda r: r.request_rate or 0.0, default=None)
    lowest = 0 if best is None else best.connections
    peaks = [c for c in settings.rungs() if c >= lowest] or [max(settings.rungs())]
    plays = [(peak, _play(history, settings, peak)) for peak in peaks]
    counts = [len(levels) for _, levels in plays]
    if best is None or best.request_rate is None:
        return TimeToGo(levels_min=min(counts), levels_max=max(counts), seconds_min=None, seconds_max=None)
    per_connection = best.request_rate / best.connections
    known = {r.connections: r.request_rate for r in rated if r.request_rate is not None}
    seconds = [
        sum(
            requests_at(c) / known.get(c, per_connection * min(max(c, lowest), max(peak, lowest)))
            + overhead_s
            for c in levels
        )
        for peak, levels in plays
    ]
    return TimeToGo(
        levels_min=min(counts), levels_max=max(counts), seconds_min=min(seconds), seconds_max=max(seconds)
    )


def _play(history: Sequence[Reading], settings: LadderSettings, peak: int) -> list[int]:
    """Return the rest of a search in which throughput grows in proportion up to ``peak`` connections, and no more."""
    played = list(history)
    levels: list[int] = []
    number = max((r.level for r in played), default=-1)
    scale = max(((r.rate or 0.0) / min(r.connections, peak) for r in played if r.counts), default=1.0)
    while isinstance(step := next_step(played, settings), Measure) and len(levels) < _MAX_LEVELS:
        number += 1
        seen = settings_of(played).get(step.connections)
        rate = None if seen is None else seen.rate
        played.append(
            Reading(
                level=number,
                connections=step.connections,
                repeat=step.repeat,
                rate=scale * min(step.connections, peak) if rate is None else rate,
            )
        )
        levels.append(step.connections)
    return levels
