"""Tests of distbench.core.synthetic and distbench.core.words."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distbench.core.lengths import LengthSpec
from distbench.core.plan import PromptPlan
from distbench.core.prompts import Prompt
from distbench.core.records import Phase
from distbench.core.shards import client_share
from distbench.core.synthetic import SyntheticWorkload, longest_system_tokens
from distbench.core.words import WORDS


def plan(**changes: Any) -> PromptPlan:
    """Return a prompt plan; lengths may be given as text."""
    lengths = ("system_tokens", "user_tokens", "output_tokens")
    values: dict[str, Any] = {k: LengthSpec.parse(v) if k in lengths else v for k, v in changes.items()}
    return PromptPlan(**values)


def prompt(
    workload: SyntheticWorkload, index: int, *, level: int = 0, phase: Phase = Phase.MEASURED, users: int = 1
) -> Prompt:
    """Return one prompt of a workload."""
    return workload.prompt(phase=phase, level=level, index=index, users_per_request=users)


def contents(one: Prompt, role: str) -> list[str]:
    """Return the contents of a role."""
    return [content for name, content in one.messages if name == role]


def test_words_are_short_plain_and_distinct() -> None:
    """ASCII lower-case words of 2 to 12 letters, none twice, enough that 16 of them never repeat by chance."""
    assert all(re.fullmatch("[a-z]{2,12}", word) for word in WORDS)
    assert len(set(WORDS)) == len(WORDS) >= 1024


def test_a_prompt_has_the_lengths_of_the_plan() -> None:
    """40 system words, 30 of each of 3 user messages, 10 output tokens for each."""
    workload = SyntheticWorkload(plan(system_tokens="40", user_tokens="30", output_tokens="10"))
    one = prompt(workload, 5, users=3)
    assert [role for role, _ in one.messages] == ["system", "user", "user", "user"]
    assert [len(content.split()) for _, content in one.messages] == [40, 30, 30, 30]
    assert (one.max_tokens, one.user_messages, one.expected_prompt_tokens) == (30, 3, None)


def test_no_system_tokens_no_system_message() -> None:
    """system-tokens 0 sends user messages only."""
    assert [role for role, _ in prompt(SyntheticWorkload(plan(system_tokens="0")), 0).messages] == ["user"]


def test_a_level_has_one_system_message_per_prefix_group_in_turn() -> None:
    """With 3 groups requests 0, 3, 6 share one, and all three differ; user messages are all different."""
    workload = SyntheticWorkload(plan(prefix_groups=3))
    prompts = [prompt(workload, index) for index in range(9)]
    systems = [contents(one, "system")[0] for one in prompts]
    assert systems[:3] * 3 == systems
    assert len(set(systems)) == 3
    assert len({contents(one, "user")[0] for one in prompts}) == 9


def test_levels_repeats_and_warmup_share_no_prompt_and_no_prefix() -> None:
    """C72: no prompt and not even the first four words are sent twice over levels and phases, whatever the seed."""
    workload = SyntheticWorkload(plan(seed=0))
    starts: set[str] = set()
    ids: set[int] = set()
    for level in range(20):
        for phase in Phase:
            one = prompt(workload, 0, level=level, phase=phase)
            starts.add(" ".join(one.messages[0][1].split()[:4]))
            ids.update(prompt(workload, index, level=level, phase=phase).prompt_id for index in range(25))
    assert len(starts) == 40
    assert len(ids) == 20 * 2 * 25


@pytest.mark.parametrize("shape", ["100", "uniform:5:400", "lognormal:100:0.6"])
def test_every_packing_sends_the_same_population(shape: str) -> None:
    """Message u has the same length packed 1, 2, 4 or 8 to a request, in any level; the last request holds what is left."""
    workload = SyntheticWorkload(plan(user_tokens=shape, output_tokens="uniform:1:50"), population=21)
    populations = []
    for level, users in enumerate((1, 2, 4, 8)):
        prompts = [prompt(workload, index, level=level, users=users) for index in range(-(-21 // users))]
        assert [one.user_messages for one in prompts[:-1]] == [users] * (len(prompts) - 1)
        assert prompts[-1].user_messages == 21 - users * (len(prompts) - 1)
        lengths = [len(content.split()) for one in prompts for content in contents(one, "user")]
        populations.append((lengths, sum(one.max_tokens for one in prompts)))
        with pytest.raises(ValueError, match="population"):
            prompt(workload, len(prompts), level=level, users=users)
    assert all(population == populations[0] for population in populations)
    assert prompt(workload, 30, phase=Phase.WARMUP, users=8).user_messages == 8


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 6), st.integers(1, 40), st.integers(1, 40), st.integers(-(2**70), 2**70))
def test_prompts_are_the_same_on_any_number_of_clients(
    clients: int, connections: int, requests: int, seed: int
) -> None:
    """The clients' shares together are exactly the prompts that one client alone would send."""
    settings_ = plan(seed=seed, user_tokens="uniform:1:20", system_tokens="3", prefix_groups=2)
    alone = SyntheticWorkload(settings_)
    sent: dict[int, Prompt] = {}
    for client in range(clients):
        share = client_share(
            client=client,
            num_clients=clients,
            num_targets=2,
            connections=connections,
            requests=requests,
            warmup=0,
        )
        workload = pickle.loads(pickle.dumps(alone))
        for index in share.measured:
            sent[index] = prompt(workload, index, level=3)
    assert [sent[index] for index in range(requests)] == [prompt(alone, i, level=3) for i in range(requests)]


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**9), st.integers(0, 1000), st.integers(0, 2**63))
def test_drawn_lengths_stay_within_their_spec(index: int, level: int, seed: int) -> None:
    """Uniform lengths are within their bounds, and never zero user words."""
    workload = SyntheticWorkload(
        plan(system_tokens="uniform:0:9", user_tokens="uniform:5:12", output_tokens="normal:3:5", seed=seed)
    )
    one = prompt(workload, index, level=level)
    assert sum(len(text.split()) for text in contents(one, "system")) <= 9
    assert 5 <= len(contents(one, "user")[0].split()) <= 12
    assert one.max_tokens >= 1
    assert 0 <= one.prompt_id < 2**63


def test_drawn_lengths_have_the_mean_of_their_spec() -> None:
    """4,000 lognormal lengths of median 100, sigma 0.5: mean 100 e^0.125 = 113.3 within 4 sigma of the mean (3.8)."""
    workload = SyntheticWorkload(plan(user_tokens="lognormal:100:0.5"))
    lengths = [workload.user_lengths(user)[0] for user in range(4000)]
    assert sum(lengths) / 4000 == pytest.approx(113.3, abs=3.8)


def test_equal_content_has_an_equal_id_and_no_other() -> None:
    """One-word messages of a small vocabulary do collide: ids are equal exactly where the texts are."""
    workload = SyntheticWorkload(plan(system_tokens="0", user_tokens="1"))
    by_text: dict[str, set[int]] = {}
    for index in range(3000):
        one = prompt(workload, index)
        by_text.setdefault(one.messages[0][1], set()).add(one.prompt_id)
    assert len(by_text) < 3000
    assert all(len(ids) == 1 for ids in by_text.values())
    assert len(set.union(*by_text.values())) == len(by_text)


def test_prompts_are_the_same_in_another_process() -> None:
    """Same seed, same bytes, whatever PYTHONHASHSEED."""
    code = (
        "from distbench.core.synthetic import *; from distbench.core.plan import *; from distbench.core.records import *\n"
        "w = SyntheticWorkload(PromptPlan(seed=9))\n"
        "print(w.prompt(phase=Phase.MEASURED, level=2, index=77, users_per_request=2).prompt_id)"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "4321"}
    printed = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    ).stdout
    assert int(printed) == prompt(SyntheticWorkload(plan(seed=9)), 77, level=2, users=2).prompt_id


def test_the_longest_system_message_is_known() -> None:
    """Over all prefix groups; 0 where there is none."""
    spread = plan(system_tokens="uniform:1:100", prefix_groups=50)
    workload = SyntheticWorkload(spread)
    assert longest_system_tokens(spread) == max(workload.system_tokens(index) for index in range(50))
    assert longest_system_tokens(plan(system_tokens="0")) == 0


def test_a_workload_is_small_when_it_crosses_to_a_client() -> None:
    """Only settings and words travel, no prompts."""
    assert len(pickle.dumps(SyntheticWorkload(plan(), population=10**9))) < 64_000
