"""Tests of distbench.core.workload: which workload a plan gives, and what is refused beforehand."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any

import pytest

from distbench.core.calibration import Calibration
from distbench.core.levels import level_from_plan
from distbench.core.plan import Plan
from distbench.core.plan_io import build_plan
from distbench.core.records import Phase
from distbench.core.replay import ReplayWorkload
from distbench.core.synthetic import SyntheticWorkload
from distbench.core.trace_workload import TraceWorkload
from distbench.core.workload import build_workload, fit_level, requests_of
from distbench.errors import PlanError

JSONL = [b'{"prompt": "one two"}', b'{"prompt": "three", "max_tokens": 3}']
TRACE = [b"timestamp,input_length,output_length", b"0,5,2", b"1,6,2", b"2,70,2"]


def plan(command: str = "run", **values: Any) -> Plan:
    """Return a plan from plan keys, written with underscores."""
    table: Mapping[str, Any] = {"urls": "http://h:1", **values}
    return build_plan(command, table, {})


def test_each_dataset_has_its_workload() -> None:
    """Synthetic needs no file; the others are read from the lines given."""
    assert isinstance(build_workload(plan()), SyntheticWorkload)
    jsonl = build_workload(plan(dataset="jsonl", dataset_path="f"), dataset_lines=JSONL)
    assert isinstance(jsonl, ReplayWorkload)
    assert jsonl.num_requests() == 2
    chats = [b'[{"conversations": [{"from": "human", "value": "Q"}]}]']
    assert build_workload(plan(dataset="sharegpt", dataset_path="f"), dataset_lines=chats).num_requests() == 1
    trace = build_workload(plan(dataset="trace", dataset_path="f"), dataset_lines=TRACE)
    assert isinstance(trace, TraceWorkload)
    assert trace.send_times_ns() is None


def test_every_workload_is_picklable_and_knows_the_seed() -> None:
    """They cross to the clients, whose open-loop schedules draw from the seed."""
    for values, lines in (
        ({}, None),
        ({"dataset": "jsonl", "dataset_path": "f"}, JSONL),
        ({"dataset": "trace", "dataset_path": "f"}, TRACE),
    ):
        workload = build_workload(plan(seed=77, **values), dataset_lines=lines)
        assert pickle.loads(pickle.dumps(workload)).seed == 77


def test_the_endpoint_decides_whether_ids_are_sent() -> None:
    """A calibration with ids to send does so on /completions only."""
    calibration = Calibration.for_token_ids(32_000)
    workload = build_workload(plan(endpoint="completions"), calibration=calibration)
    assert workload.prompt(phase=Phase.WARMUP, level=0, index=0, users_per_request=1).token_ids is not None


def test_a_dataset_that_was_not_read_is_an_error() -> None:
    """The caller must open the file."""
    with pytest.raises(PlanError, match="was not read"):
        build_workload(plan(dataset="jsonl", dataset_path="f"))


def test_a_request_that_cannot_fit_the_context_stops_before_the_load() -> None:
    """C90: 256 prompt words and 128 output tokens do not fit 300; they do fit 400."""
    with pytest.raises(
        PlanError, match=r"at least 256 prompt tokens and 128 output tokens .* context of 300"
    ):
        build_workload(plan(), max_model_len=300)
    build_workload(plan(), max_model_len=400)


def test_shapes_are_checked_by_their_smallest_packing() -> None:
    """Larger ones are said beforehand by describe(), not refused."""
    shapes = plan("shapes", users_per_request=[1, 8])
    build_workload(shapes, max_model_len=400)
    with pytest.raises(PlanError, match="users-per-request"):
        build_workload(shapes, max_model_len=300)


def test_drawn_lengths_are_lowered_to_the_context() -> None:
    """A long tail is cut where one message a request would not fit: 1000 - 64 - 128 - 128 = 680 words at most."""
    workload = build_workload(plan(user_tokens="lognormal:128:2"), max_model_len=1000)
    assert isinstance(workload, SyntheticWorkload)
    lengths = [workload.user_lengths(user)[0] for user in range(2000)]
    assert max(lengths) == 680
    assert sorted(lengths)[1000] == pytest.approx(128, rel=0.2)


def test_packing_of_conversations_is_refused() -> None:
    """Rows of more than one user message cannot share a request."""
    lines = [
        b'{"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}, {"from": "human", "value": "c"}]}'
    ]
    with pytest.raises(PlanError, match="cannot pack conversations"):
        build_workload(plan(dataset="jsonl", dataset_path="f", users_per_request=2), dataset_lines=lines)
    with pytest.raises(PlanError, match="cannot pack conversations"):
        build_workload(plan("shapes", dataset="jsonl", dataset_path="f"), dataset_lines=lines)


def test_a_timed_trace_is_as_long_as_it_is() -> None:
    """Requests default to the whole trace; more than it holds, or nothing left, is an error."""
    values = {"dataset": "trace", "dataset_path": "f", "pattern": "trace"}
    whole = plan(**values)
    workload = build_workload(whole, dataset_lines=TRACE)
    spec = fit_level(level_from_plan(whole, level=0, connections=4), whole, workload)
    assert spec.requests == 3
    with pytest.raises(PlanError, match="trace holds 2 behind the warm-up"):
        build_workload(plan(**values, warmup=1, requests=3), dataset_lines=TRACE)
    with pytest.raises(PlanError, match="no request is left"):
        build_workload(plan(**values, warmup=3), dataset_lines=TRACE)
    with pytest.raises(PlanError, match="3 exceed the model's context"):
        build_workload(plan(**values), dataset_lines=TRACE, max_model_len=5)


def test_fit_level_leaves_other_levels_alone() -> None:
    """Only a recorded schedule has an end of its own."""
    synthetic = plan()
    spec = level_from_plan(synthetic, level=0, connections=4)
    assert fit_level(spec, synthetic, build_workload(synthetic)) == spec


@pytest.mark.parametrize(
    ("population", "users", "requests"), [(512, 1, 512), (512, 8, 64), (513, 8, 65), (0, 4, 0)]
)
def test_a_population_makes_so_many_requests(population: int, users: int, requests: int) -> None:
    """The last request may hold fewer messages."""
    assert requests_of(population, users) == requests
