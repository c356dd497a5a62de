"""Tests of distbench.core.replay."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from distbench.core.datasets import DatasetReport, Turn
from distbench.core.lengths import LengthSpec
from distbench.core.plan import PromptPlan
from distbench.core.prompts import Prompt
from distbench.core.records import Phase
from distbench.core.replay import ReplayWorkload
from distbench.errors import PlanError

U1, A1, U2 = ("user", "one"), ("assistant", "eins"), ("user", "two")
CONVERSATION = [Turn((U1,)), Turn((U1, A1, U2), 9)]
SINGLE = [Turn((("system", "S"), ("user", "three")))]


def replay(*conversations: list[Turn], max_model_len: int | None = None, **changes: Any) -> ReplayWorkload:
    """Return a workload of conversations."""
    values: dict[str, Any] = {
        "dataset": "jsonl",
        "dataset_path": "f",
        "output_tokens": LengthSpec("fixed", 5),
        **changes,
    }
    report = DatasetReport(read=len(conversations), used=len(conversations))
    return ReplayWorkload(PromptPlan(**values), conversations, report, max_model_len=max_model_len)


def prompt(
    workload: ReplayWorkload, index: int, *, level: int = 0, phase: Phase = Phase.MEASURED, users: int = 1
) -> Prompt:
    """Return one prompt of a workload."""
    return workload.prompt(phase=phase, level=level, index=index, users_per_request=users)


def test_turns_go_in_order_each_after_the_answer_before_it() -> None:
    """The second turn holds the recorded answer, follows the first by the think time, and asks for its own max_tokens."""
    workload = replay(CONVERSATION, SINGLE, think_time_s=1.5)
    first, second, third = (prompt(workload, index) for index in range(3))
    assert workload.num_requests() == 3
    assert first.messages == (("user", "[0.0m0] one"),)
    assert second.messages == (("user", "[0.0m0] one"), A1, U2)
    assert third.messages == (("system", "[0.0m0] S"), ("user", "three"))
    assert [one.follows for one in (first, second, third)] == [None, 0, None]
    assert [one.think_ns for one in (first, second, third)] == [0, 1_500_000_000, 0]
    assert [one.max_tokens for one in (first, second, third)] == [5, 9, 5]
    assert [one.user_messages for one in (first, second, third)] == [1, 1, 1]


def test_past_its_end_the_file_starts_again_with_another_mark() -> None:
    """Index 4 of 3 rows is row 1 of lap 1, and follows index 3."""
    one = prompt(replay(CONVERSATION, SINGLE), 4)
    assert one.messages == (("user", "[0.0m1] one"), A1, U2)
    assert one.follows == 3


def test_levels_phases_and_laps_share_no_prompt() -> None:
    """The mark differs, so a prefix cache is cold at each; within one of them what the rows share stays shared."""
    workload = replay([Turn((U1,))], [Turn((U1,))])
    ids = {
        prompt(workload, index, level=level, phase=phase).prompt_id
        for level in range(3)
        for phase in Phase
        for index in (0, 2)
    }
    assert len(ids) == 3 * 2 * 2
    assert prompt(workload, 0).prompt_id == prompt(workload, 1).prompt_id


def test_rows_of_one_user_message_can_be_packed() -> None:
    """The first row's system message stays; output tokens add up; laps go on within a request."""
    workload = replay(SINGLE, [Turn((("user", "four"),), 7)], [Turn((("system", "T"), ("user", "five")))])
    workload.check_packing()
    one = prompt(workload, 1, users=2)
    assert one.messages == (("system", "[0.0m0] T"), ("user", "five"), ("user", "three"))
    assert (one.max_tokens, one.user_messages) == (10, 2)


def test_the_last_packed_request_holds_what_is_left_of_the_population() -> None:
    """3 rows packed in twos: the second request holds one; the warm-up has no end."""
    report = DatasetReport(read=3, used=3)
    plan = PromptPlan(dataset="jsonl", dataset_path="f")
    workload = ReplayWorkload(plan, [[Turn((U1,))]] * 3, report, population=3)
    assert prompt(workload, 1, users=2).user_messages == 1
    assert prompt(workload, 1, users=2, phase=Phase.WARMUP).user_messages == 2


@pytest.mark.parametrize("conversation", [CONVERSATION, [Turn((U1, A1, U2))]], ids=["turns", "chat"])
def test_conversations_cannot_be_packed(conversation: list[Turn]) -> None:
    """Said before the run."""
    with pytest.raises(PlanError, match="users-per-request"):
        replay(SINGLE, conversation).check_packing()


def test_requests_that_cannot_fit_the_context_are_left_out_and_counted() -> None:
    """C90: context 100, prompts of 90 and 50 tokens, 20 output tokens: the first is left out; later turns go with an earlier one."""
    long, short = (("user", " ".join(["word"] * n)) for n in (90, 50))
    workload = replay(
        [Turn((long,))], [Turn((short,))], max_model_len=100, output_tokens=LengthSpec("fixed", 20)
    )
    assert (workload.num_requests(), workload.num_too_long) == (1, 1)
    turns = [Turn((short,)), Turn((short, A1, long)), Turn((short, A1, long, A1, short))]
    workload = replay(turns, max_model_len=100, output_tokens=LengthSpec("fixed", 20))
    assert (workload.num_requests(), workload.num_too_long) == (1, 2)
    assert prompt(workload, 1).messages[0][1].startswith("[0.0m1] word")
    with pytest.raises(PlanError, match="context of 100"):
        replay([Turn((long,))], max_model_len=100, output_tokens=LengthSpec("fixed", 20))


def test_a_pickled_copy_gives_equal_prompts() -> None:
    """Clients hold copies; any text survives."""
    workload = replay(CONVERSATION, [Turn((("user", 'Ünï\u2028 "\\ \x00 漢'),))])
    copy = pickle.loads(pickle.dumps(workload))
    assert [prompt(copy, index) for index in range(6)] == [prompt(workload, index) for index in range(6)]
    assert prompt(copy, 2).messages == (("user", '[0.0m0] Ünï\u2028 "\\ \x00 漢'),)


def test_drawn_output_lengths_depend_on_the_row_only() -> None:
    """The same in every level, so that levels are comparable."""
    workload = replay(*[[Turn((U1,))]] * 20, output_tokens=LengthSpec.parse("uniform:1:1000"))
    lengths = [prompt(workload, index, level=0).max_tokens for index in range(20)]
    assert lengths == [prompt(workload, index, level=5).max_tokens for index in range(20)]
    assert len(set(lengths)) > 10
