"""Levels get their defaults from the plan."""

import pytest

from distbench.core.levels import LevelSpec, default_requests, level_from_plan
from distbench.core.plan import LoadPlan, Plan, PromptPlan, TargetPlan


def plan(**load: object) -> Plan:
    """Return a run with these load settings."""
    values = {"connections": (16,), **load}
    prompts = (
        PromptPlan(dataset="trace", dataset_path="t.jsonl")
        if values.get("pattern") == "trace"
        else PromptPlan()
    )
    return Plan(
        command="run",
        target=TargetPlan(urls=("http://h:1",)),
        load=LoadPlan(**values),  # type: ignore[arg-type]
        prompts=prompts,
    )


@pytest.mark.parametrize(("connections", "requests"), [(1, 400), (50, 400), (51, 408), (1024, 8192)])
def test_default_requests_are_at_least_400_and_8_per_connection(connections: int, requests: int) -> None:
    """Enough for a window."""
    assert default_requests(connections) == requests


def test_a_closed_loop_warms_up_every_connection_once() -> None:
    """Warm-up defaults to the connections; requests to the default of the level."""
    level = level_from_plan(plan(), level=2, connections=16)
    assert (level.warmup, level.requests, level.is_open_loop) == (16, 400, False)


def test_a_duration_alone_leaves_the_requests_open() -> None:
    """Only time ends the level."""
    assert level_from_plan(plan(duration_s=5.0), level=0, connections=16).requests is None


@pytest.mark.parametrize(
    ("load", "warmup"),
    [
        ({"pattern": "constant", "rate_rps": 3.0}, 6),
        ({"pattern": "poisson", "rate_rps": 500.0}, 16),
        ({"pattern": "paced", "batch_size": 5, "batch_interval_s": 1.0}, 5),
        ({"pattern": "trace"}, 0),
        ({"pattern": "constant", "rate_rps": 3.0, "warmup": 0}, 0),
        ({"warmup": 7}, 7),
    ],
    ids=["two-seconds", "at-most-the-cap", "one-batch", "trace", "asked-none", "asked"],
)
def test_warmup_of_an_open_loop_is_a_short_piece_of_its_schedule(
    load: dict[str, object], warmup: int
) -> None:
    """The number of connections is only a cap there."""
    assert level_from_plan(plan(**load), level=0, connections=16).warmup == warmup


@pytest.mark.parametrize(
    ("requests", "duration_s", "longer"),
    [(400, None, (1600, None)), (None, 12.0, (None, 48.0)), (400, 12.0, (1600, 48.0))],
)
def test_a_longer_level_has_more_of_what_ends_it(
    requests: int | None, duration_s: float | None, longer: tuple[int | None, float | None]
) -> None:
    """Requests and seconds grow together; connections and warm-up stay."""
    spec = LevelSpec(level=3, connections=16, requests=requests, warmup=16, duration_s=duration_s).lengthened(
        4
    )
    assert (spec.requests, spec.duration_s) == longer
    assert (spec.level, spec.connections, spec.warmup) == (3, 16, 16)
