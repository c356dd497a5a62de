"""Tests of distbench.core.summary; hit rates by hand arithmetic of whole blocks."""

from __future__ import annotations

from typing import Any

import pytest

from distbench.core.calibration import Calibration, ChatTemplate
from distbench.core.datasets import read_jsonl
from distbench.core.lengths import LengthSpec
from distbench.core.levels import LevelSpec
from distbench.core.plan import PromptPlan
from distbench.core.replay import ReplayWorkload
from distbench.core.summary import LengthStats, describe
from distbench.core.synthetic import SyntheticWorkload

# As ChatML has it: 3 + content + 2 for each message, 3 for the answer's start.
TEMPLATE = ChatTemplate(before_system=3, after_system=5, between_users=5, after_users=5, before_user=3)


def level(number: int = 0, *, requests: int | None = 100, users: int = 1) -> LevelSpec:
    """Return a level."""
    return LevelSpec(level=number, connections=8, requests=requests, warmup=0, users_per_request=users)


def synthetic(
    system: int, user: int, *, calibration: Calibration | None = None, **changes: Any
) -> SyntheticWorkload:
    """Return a synthetic workload of fixed lengths."""
    plan = PromptPlan(
        system_tokens=LengthSpec("fixed", system),
        user_tokens=LengthSpec("fixed", user),
        output_tokens=LengthSpec("fixed", 40),
        **changes,
    )
    return SyntheticWorkload(plan, calibration=calibration)


def test_hit_ratio_is_exact_in_blocks() -> None:
    """
    System 93, user 70, template 13: 176 tokens; 101 are shared (3 + 93 + 5), which are 3 whole blocks of 32, or 6 of 16.

    99 of 100 requests find them: 99 x 96 / 17,600 = 0.54; token by token 99 x 101 / 17,600 = 0.568125.
    """
    workload = synthetic(93, 70, calibration=Calibration(exact=True, template=TEMPLATE))
    summary = describe(workload, [level()], block_tokens=32)
    assert summary.exact
    assert summary.distinct_ratio == 1.0
    (one,) = summary.levels
    assert one.prompt_tokens == LengthStats(mean=176.0, min=176, max=176)
    assert one.output_tokens == LengthStats(mean=40.0, min=40, max=40)
    assert one.hit_ratio == pytest.approx(0.54)
    assert one.shared_ratio == pytest.approx(0.568125, abs=0.001)  # a few first words are equal by chance
    assert describe(workload, [level()], block_tokens=16).levels[0].hit_ratio == pytest.approx(0.54)


def test_a_completions_prompt_has_no_template() -> None:
    """93 words and a joiner of 2 behind BOS: 96 shared of 166, which are 6 whole blocks of 16; without BOS and joiner 5."""
    plan = PromptPlan(system_tokens=LengthSpec("fixed", 93), user_tokens=LengthSpec("fixed", 70))
    for overhead, joiner, ratio in ((1, 2, 96 / 166), (0, 0, 80 / 163)):
        calibration = Calibration(exact=True, template=TEMPLATE, text_overhead=overhead, text_joiner=joiner)
        workload = SyntheticWorkload(plan, calibration=calibration, endpoint="completions")
        assert describe(workload, [level()]).levels[0].hit_ratio == pytest.approx(0.99 * ratio)


def test_packing_lowers_the_hit_ratio() -> None:
    """The same 96 shared tokens over prompts that grow by 75 a message: 0.54, then 96/251, 96/401, 96/701 of all but the first."""
    workload = synthetic(93, 70, calibration=Calibration(exact=True, template=TEMPLATE))
    levels = [level(n, users=users) for n, users in enumerate((1, 2, 4, 8))]
    ratios = [one.hit_ratio for one in describe(workload, levels, block_tokens=32).levels]
    assert ratios == pytest.approx([0.99 * 96 / n for n in (176, 251, 401, 701)])


def test_each_prefix_group_misses_once() -> None:
    """4 groups of 64 shared words, 36 of their own: 96 of 100 requests find 64 of 100."""
    one = describe(synthetic(64, 36, prefix_groups=4), [level()], block_tokens=16).levels[0]
    assert one.hit_ratio == pytest.approx(0.96 * 0.64)


def test_levels_do_not_share() -> None:
    """All prompts of all levels are distinct, and each level starts cold: its own hit ratio is that of one level alone."""
    workload = synthetic(64, 36)
    summary = describe(workload, [level(0), level(1), level(2)])
    assert summary.distinct_ratio == 1.0
    assert [one.hit_ratio for one in summary.levels] == pytest.approx([0.99 * 0.64] * 3)


def test_the_last_token_is_never_a_hit() -> None:
    """Two equal prompts of 32 tokens: the second finds 16 of them in blocks of 16, 31 token by token."""
    lines = [b'{"prompt": "%s"}' % b" ".join([b"w"] * 31)] * 2
    conversations, report = read_jsonl(lines, "f")
    workload = ReplayWorkload(PromptPlan(dataset="jsonl", dataset_path="f"), conversations, report)
    summary = describe(workload, [level(requests=2)], block_tokens=16)
    assert summary.levels[0].hit_ratio == pytest.approx(16 / 64)
    assert summary.levels[0].shared_ratio == pytest.approx(31 / 64)
    assert summary.distinct_ratio == 0.5
    assert summary.lines()[0] == "dataset: 2 read, 2 used, 0 skipped"


def test_packings_that_cannot_fit_are_said_beforehand() -> None:
    """
    A context of 600: 1 message fits (50 + 100 words, 40 output tokens); of 4 the answer is cut (450 + 160); 6 have no room (650).
    """
    levels = [level(0), level(1, users=4), level(2, users=6)]
    summary = describe(synthetic(50, 100), levels, max_model_len=600)
    assert [one.too_long for one in summary.levels] == [0, 100, 100]
    assert [one.refused for one in summary.levels] == [0, 0, 100]
    assert summary.lines()[3:5] == [
        "level 1 (4 user messages per request): 100 of 100 answers will be cut short by the context of 600 tokens",
        "level 2 (6 user messages per request): 100 of 100 requests cannot fit the context of 600 tokens",
    ]
    unknown = describe(synthetic(50, 100), [level()]).levels[0]
    assert (unknown.too_long, unknown.refused) == (None, None)


def test_left_out_rows_are_counted() -> None:
    """C90: what a data set holds that cannot fit is not sent, and said."""
    lines = [b'{"prompt": "%s"}' % b" ".join([b"w"] * n) for n in (90, 50)]
    conversations, report = read_jsonl(lines, "f")
    plan = PromptPlan(dataset="jsonl", dataset_path="f", output_tokens=LengthSpec("fixed", 20))
    workload = ReplayWorkload(plan, conversations, report, max_model_len=100)
    summary = describe(workload, [level(requests=1)], max_model_len=100)
    assert summary.left_out == 1
    assert "1 requests exceed the context of 100 tokens and are left out" in summary.lines()


def test_a_large_level_is_sampled_within_the_budget() -> None:
    """2,000 requests, or the tokens allowed, of all levels together; a level without an end is sampled alike."""
    summary = describe(synthetic(4, 4), [level(0, requests=10**9), level(1, requests=None)])
    assert [one.sampled for one in summary.levels] == [1000, 1000]
    two = [level(0), level(1)]
    assert [one.sampled for one in describe(synthetic(50, 50), two, max_tokens=1000).levels] == [5, 5]
    assert [one.sampled for one in describe(synthetic(50, 50), two, max_tokens=10).levels] == [1, 1]


def test_the_summary_in_words() -> None:
    """Lengths, hits and distinct share; lower bounds are called so."""
    assert describe(synthetic(64, 36), [level()]).lines() == [
        "prompt tokens at least 100; output tokens 40; expected prefix hits 63.4 % in blocks of 16 (shared beginnings: 63.4 %)",
        "distinct prompts: 100.0 %",
    ]
    packed = describe(synthetic(64, 36), [level(0), level(1, users=2)]).lines()
    assert packed[1].startswith("2 user messages per request: prompt tokens at least 136;")
