"""Tests of distbench.core.traces and distbench.core.trace_workload."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

from distbench.core.calibration import Calibration, ChatTemplate
from distbench.core.plan import PromptPlan
from distbench.core.prompts import Prompt
from distbench.core.records import Phase
from distbench.core.trace_workload import TraceWorkload
from distbench.core.traces import Trace, read_trace
from distbench.errors import PlanError

MOONCAKE = [
    {"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [7, 8, 9]},
    {"timestamp": 3000, "input_length": 600, "output_length": 6, "hash_ids": [7, 8]},
    {"timestamp": 4500, "input_length": 600, "output_length": 7, "hash_ids": [70, 8]},
    {"timestamp": 4500, "input_length": 30, "output_length": 8},
]


def mooncake() -> Trace:
    """Return the trace of MOONCAKE."""
    return read_trace([json.dumps(row).encode() for row in MOONCAKE], "f")


def replay(trace: Trace, *, speed: float = 1.0, **changes: Any) -> TraceWorkload:
    """Return the workload of a trace."""
    return TraceWorkload(PromptPlan(dataset="trace", dataset_path="f", trace_speed=speed), trace, **changes)


def prompt(workload: TraceWorkload, index: int, *, level: int = 0, phase: Phase = Phase.MEASURED) -> Prompt:
    """Return one prompt of a workload."""
    return workload.prompt(phase=phase, level=level, index=index, users_per_request=1)


def words(one: Prompt) -> list[str]:
    """Return the words of a prompt."""
    return one.messages[0][1].split()


def test_mooncake_rows_are_read() -> None:
    """Milliseconds, lengths, and hash ids of each row."""
    trace = mooncake()
    assert trace.times_ns.tolist() == [0, 3_000_000_000, 4_500_000_000, 4_500_000_000]
    assert trace.input_tokens.tolist() == [1100, 600, 600, 30]
    assert trace.output_tokens.tolist() == [5, 6, 7, 8]
    assert trace.hash_ids.tolist() == [7, 8, 9, 7, 8, 70, 8]
    assert trace.hash_ends.tolist() == [0, 3, 5, 7, 7]
    assert str(trace.report) == "4 read, 4 used, 0 skipped"


@pytest.mark.parametrize(
    ("header", "rows", "times_ns"),
    [
        ("timestamp,input_length,output_length", ["10.5,3,4", "12,5,6"], [0, 1_500_000_000]),
        ("timestamp_ms,input_tokens,output_tokens", ["10,3,4", "12,5,6"], [0, 2_000_000]),
        ("arrived_at, num_prefill_tokens, num_decode_tokens", ["0, 3, 4", "1, 5, 6"], [0, 1_000_000_000]),
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens",
            ["2023-11-16 18:17:03.9799600,3,4", "2023-11-16 18:17:04.2319600,5,6"],
            [0, 252_000_000],
        ),
        ("input_length,output_length,timestamp", ["5,6,9", "3,4,8"], [0, 1_000_000_000]),
    ],
    ids=["seconds", "ms", "spaces", "dates", "unsorted"],
)
def test_csv_traces_are_read_whatever_their_columns_are_called(
    header: str, rows: list[str], times_ns: list[int]
) -> None:
    """Times count from the first; rows are put into the order of time."""
    trace = read_trace([f"{line}\r\n".encode() for line in [header, *rows]], "f")
    assert trace.times_ns.tolist() == times_ns
    assert trace.input_tokens.tolist() == [3, 5]
    assert trace.output_tokens.tolist() == [4, 6]


def test_bad_rows_of_a_trace_are_skipped_with_their_lines() -> None:
    """Counted by reason, in either form."""
    trace = read_trace(
        [
            b"timestamp,input_length,output_length\n",
            b"1,2,3\n",
            b"1,2\n",
            b"x,2,3\n",
            b"1,0,3\n",
            b"1,2.5,3\n",
        ],
        "f",
    )
    assert str(trace.report) == (
        "5 read, 1 used, 4 skipped: 2 with an input length that is no number of tokens above 0, "
        "1 with another number of columns than the header, 1 without a timestamp"
    )
    assert trace.report.examples[0] == "line 3: with another number of columns than the header"
    good = b'{"timestamp": 1, "input_length": 2, "output_length": 3}'
    bad = [
        b"oops",
        b"{}",
        b'{"timestamp": 1, "input_length": 2, "output_length": 3, "hash_ids": "x"}',
        b"[1]",
    ]
    trace = read_trace([good, *bad], "f")
    assert trace.report.examples == (
        "line 2: not JSON",
        "line 3: without a timestamp",
        "line 4: with hash_ids that are no list of numbers",
        "line 5: not an object",
    )
    with pytest.raises(PlanError, match="no row can be used"):
        read_trace([b"timestamp,input_length,output_length\n"], "f")


def test_equal_hash_ids_give_equal_beginnings() -> None:
    """Rows 0 and 1 share their first block of 512 and, of the second, what row 1 has of it; row 2 shares nothing."""
    workload = replay(mooncake())
    first, second, third, fourth = (words(prompt(workload, index)) for index in range(4))
    assert [len(text) for text in (first, second, third, fourth)] == [1100, 600, 600, 30]
    assert first[:600] == second
    assert first[:4] != third[:4]
    assert first[512:600] == third[512:600]  # the same block, behind another: no common beginning
    assert [prompt(workload, index).max_tokens for index in range(4)] == [5, 6, 7, 8]


def test_blocks_differ_between_levels_phases_and_laps() -> None:
    """A prefix cache is cold at each, whatever the ids say."""
    workload = replay(mooncake())
    starts = {
        tuple(words(prompt(workload, index, level=level, phase=phase))[:5])
        for index in (0, 1, 4, 5)
        for level in (0, 1)
        for phase in Phase
    }
    assert len(starts) == 2 * 2 * 2


def test_recorded_times_are_the_schedule_at_the_plans_speed() -> None:
    """Twice as fast halves the times; without pattern trace there is no schedule."""
    timed = replay(mooncake(), speed=2.0, timed=True).send_times_ns()
    assert timed is not None
    assert timed.tolist() == [0, 1_500_000_000, 2_250_000_000, 2_250_000_000]
    assert replay(mooncake()).send_times_ns() is None


def test_the_warmup_of_a_timed_replay_is_its_first_rows() -> None:
    """So that each row goes at its own time: measured request 0 is then row 1."""
    workload = replay(mooncake(), timed=True, warmup=1)
    assert workload.num_requests() == 3
    assert len(words(prompt(workload, 0, phase=Phase.WARMUP))) == 1100
    assert len(words(prompt(workload, 0))) == 600
    untimed = replay(mooncake(), warmup=1)
    assert untimed.num_requests() == 4
    assert len(words(prompt(untimed, 0))) == 1100


def test_rows_over_the_context_are_left_out() -> None:
    """1,105 tokens do not fit 1,000; times still count from the first row that is sent."""
    workload = replay(mooncake(), timed=True, max_model_len=1000)
    assert (workload.num_requests(), workload.num_too_long) == (3, 1)
    times = workload.send_times_ns()
    assert times is not None
    assert times.tolist() == [0, 1_500_000_000, 1_500_000_000]
    assert len(words(prompt(workload, 0))) == 600


def test_a_known_template_is_part_of_the_recorded_length() -> None:
    """6 tokens around one user message leave 24 words of 30; at least one word is sent."""
    template = ChatTemplate(before_system=2, after_system=4, between_users=4, after_users=4, before_user=2)
    workload = replay(mooncake(), calibration=Calibration(exact=True, template=template))
    one = prompt(workload, 3)
    assert len(words(one)) == 24
    assert one.expected_prompt_tokens == 30


def test_token_ids_for_completions() -> None:
    """Ids have exactly the recorded length, and the same shared beginnings."""
    workload = replay(mooncake(), calibration=Calibration.for_token_ids(8192), endpoint="completions")
    first, second = (prompt(workload, index) for index in range(2))
    assert first.token_ids is not None
    assert second.token_ids is not None
    assert (len(first.token_ids), len(second.token_ids)) == (1100, 600)
    assert first.token_ids[:600] == second.token_ids
    assert second.expected_prompt_tokens == 600


def test_a_pickled_copy_of_a_trace_gives_equal_prompts() -> None:
    """Clients hold copies."""
    workload = replay(mooncake())
    copy = pickle.loads(pickle.dumps(workload))
    assert [prompt(copy, index) for index in range(6)] == [prompt(workload, index) for index in range(6)]
    with pytest.raises(ValueError, match="packed"):
        workload.prompt(phase=Phase.MEASURED, level=0, index=0, users_per_request=2)
