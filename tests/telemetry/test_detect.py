"""Restarts and balancers are told apart by how counters move."""

import pytest

from distbench.telemetry.detect import Continuity, continuity_of_counter, continuity_of_identity, worst


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1000, 40, 1100, 80], Continuity.MIXED),
        ([1000, 990, 1100, 1080], Continuity.MIXED),
        ([1000, 1010, 40, 60, 1100], Continuity.MIXED),
        ([0, 10, 10, 40], Continuity.STEADY),
        ([1000, 1100, 0, 50, 100, 150], Continuity.RESET),
        ([100, 0, 20, 40, 60, 80, 100, 120], Continuity.RESET),
        ([None, 5, None, 7], Continuity.STEADY),
        ([], Continuity.STEADY),
    ],
    ids=str,
)
def test_counter_tells_resets_from_balancers(values: list[float | None], expected: Continuity) -> None:
    """C78: a see-saw is several servers; a fall with a climb behind it is a restart."""
    assert continuity_of_counter(values) is expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.0, 1.0, 1.0], Continuity.STEADY),
        ([1.0, 1.0, 2.0, 2.0], Continuity.RESET),
        ([1.0, 2.0, 1.0], Continuity.MIXED),
        ([None, None], Continuity.STEADY),
    ],
)
def test_start_time_tells_resets_from_balancers(values: list[float | None], expected: Continuity) -> None:
    """C78: a start time that comes back belongs to another server that answers in turn."""
    assert continuity_of_identity(values) is expected


def test_worst_verdict_wins() -> None:
    """Mixed servers make resets of single counters meaningless."""
    assert worst([Continuity.RESET, Continuity.MIXED, Continuity.STEADY]) is Continuity.MIXED
    assert worst([]) is Continuity.STEADY
