"""
What is wrong with a target's counters: restarted servers, several servers behind one URL (floor F2, pure).

A restart costs the level its deltas. A balancer in front of /metrics is worse: every scrape tells of another server, so no rate can be
taken at all, and the user must name each server's own URL.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from enum import StrEnum


class Continuity(StrEnum):
    """Whether the readings of a target tell one story."""

    STEADY = "steady"
    RESET = "reset"
    MIXED = "mixed"


# After a restart a counter climbs again; behind a balancer it leaps back in one step. Half of the fall is far more than a step's worth
# of a counter that was just restarted, and less than any leap between two servers.
_LEAP_RATIO = 0.5


def continuity_of_identity(values: Sequence[float | None]) -> Continuity:
    """
    Judge readings of something that names the process, such as its start time.

    Returns:
        MIXED where a value comes back after another one was seen, RESET where it changed for good, else STEADY. Missing readings are
        skipped.
    """
    runs: list[float] = []
    for value in values:
        if value is not None and (not runs or runs[-1] != value):
            runs.append(value)
    if len(set(runs)) < len(runs):
        return Continuity.MIXED
    return Continuity.RESET if len(runs) > 1 else Continuity.STEADY


def continuity_of_counter(values: Sequence[float | None]) -> Continuity:
    """
    Judge the readings of one counter in order of time.

    Returns:
        STEADY where it never falls; MIXED where it falls and later leaps back over its former height in a single step (see-saw);
        RESET where it falls and climbs again. Missing readings are skipped.
    """
    known = [value for value in values if value is not None]
    fell = False
    lost_height: float | None = None
    floor = 0.0
    for before, now in itertools.pairwise(known):
        if lost_height is not None and now >= lost_height:
            if now - before >= _LEAP_RATIO * (lost_height - floor):
                return Continuity.MIXED
            lost_height = None
        if now < before:
            fell = True
            if lost_height is None or before > lost_height:
                lost_height = before
            floor = now
    return Continuity.RESET if fell else Continuity.STEADY


def worst(verdicts: Sequence[Continuity]) -> Continuity:
    """Return the worst of several judgements: mixed before reset before steady; steady for none."""
    for verdict in (Continuity.MIXED, Continuity.RESET):
        if verdict in verdicts:
            return verdict
    return Continuity.STEADY
