"""Which level comes next (floor F4): one for run, the ladder for capacity, a list for shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from distbench.analysis.facts import LevelFacts
from distbench.analysis.judge import search_settings
from distbench.analysis.ladder import LadderSettings, Measure, Stop, next_step
from distbench.analysis.time_to_go import time_to_go
from distbench.core.levels import LevelSpec, level_from_plan
from distbench.core.plan import Plan
from distbench.core.plan_io import plan_to_table
from distbench.experiment.shapes import DEFAULT_CONNECTIONS, shape_levels

DEFAULT_REPEATS = 3
"""Repeats of capacity; shapes has none unless told."""


class Planner(Protocol):
    """Decides from the levels that were measured, and from nothing else."""

    def next(self, judged: Sequence[LevelFacts]) -> LevelSpec | None:
        """Return the next level, its number that of the levels before it; None: the experiment is over."""
        ...

    def outlook(self, judged: Sequence[LevelFacts]) -> str | None:
        """Return what comes next and how long the rest takes, one sentence; None: nothing to say."""
        ...


class LevelList:
    """The planner of run and shapes: levels that are known beforehand."""

    def __init__(self, levels: Sequence[LevelSpec]) -> None:
        self._levels = tuple(levels)

    def next(self, judged: Sequence[LevelFacts]) -> LevelSpec | None:
        """Return the next level of the list."""
        return self._levels[len(judged)] if len(judged) < len(self._levels) else None

    def outlook(self, judged: Sequence[LevelFacts]) -> str | None:
        """Return the place in the list, where there are several."""
        left = len(self._levels) - len(judged)
        return f"{left} levels to go" if len(self._levels) > 1 and left else None


class Ladder:
    """The planner of capacity: analysis/ladder.py over the readings so far."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._settings = ladder_settings(plan)
        self._measure: Measure | None = None

    def next(self, judged: Sequence[LevelFacts]) -> LevelSpec | None:
        """Return the level that the search wants next."""
        step = next_step([j.reading for j in judged], self._settings)
        self._measure = None if isinstance(step, Stop) else step
        if isinstance(step, Stop):
            return None
        spec = level_from_plan(
            self._plan,
            level=len(judged),
            connections=step.connections,
            repeat=step.repeat,
        )
        return spec.lengthened(step.longer)

    def outlook(self, judged: Sequence[LevelFacts]) -> str | None:
        """Return why the next level is measured, and bounds of the time to go."""
        if self._measure is None:
            return None
        left = time_to_go([j.reading for j in judged], self._settings, self._requests_at)
        text = f"{self._measure.text}; {left.levels_min} to {left.levels_max} levels to go"
        if left.seconds_min is None or left.seconds_max is None:
            return text
        return f"{text}, about {_span(left.seconds_min)} to {_span(left.seconds_max)}"

    def _requests_at(self, connections: int) -> int:
        spec = level_from_plan(self._plan, level=0, connections=connections)
        return (spec.requests or 0) + spec.warmup


def ladder_settings(plan: Plan) -> LadderSettings:
    """Return the settings of the capacity search of a plan."""
    return search_settings(plan_to_table(plan))


def peak_repeats(plan: Plan) -> int:
    """Return how often the peak is measured again with twice the clients."""
    return max(1, ladder_settings(plan).repeats)


def planned_levels(plan: Plan) -> list[LevelSpec]:
    """Return the levels that are known beforehand: all of run and shapes, the climb to the maximum of capacity."""
    if plan.command == "shapes":
        return shape_levels(plan)
    if plan.command == "capacity":
        rungs = ladder_settings(plan).rungs()
    else:
        rungs = (plan.load.connections or (DEFAULT_CONNECTIONS,))[:1]
    return [level_from_plan(plan, level=i, connections=connections) for i, connections in enumerate(rungs)]


def make_planner(plan: Plan, levels: Sequence[LevelSpec]) -> Planner:
    """
    Return the planner of a plan's command.

    Args:
        plan: The plan.
        levels: Those of run and shapes; capacity finds its own.
    """
    return Ladder(plan) if plan.command == "capacity" else LevelList(levels)


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
