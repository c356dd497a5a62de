"""Settings, the step-time formula, and the tokenizer."""

from __future__ import annotations

import statistics

import pytest

from distbench.errors import PlanError
from distbench.sim.answers import WORDS, Answer, geometric
from distbench.sim.scheduler import Step
from distbench.sim.settings import SimSettings
from distbench.sim.step_time import StepClock, StepTimeSettings
from distbench.sim.tokenizer import Tokenizer


def test_all_problems_are_told_at_once() -> None:
    """Four mistakes, four sentences."""
    with pytest.raises(PlanError) as caught:
        SimSettings(
            max_num_seqs=0,
            queue_overflow="maybe",
            faults=("explode",),
            step_time=StepTimeSettings(per_sequence_s=-1.0),
        )
    assert len(caught.value.problems) == 4


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_num_seqs", "8"),
        ("num_blocks", 4096.0),
        ("max_num_queued_reqs", True),
        ("mean_output_tokens", float("nan")),
    ],
)
def test_values_of_the_wrong_kind_are_problems(name: str, value: object) -> None:
    """Settings may come from JSON: a text, a fraction or a truth value where a number belongs is named, not a crash."""
    with pytest.raises(PlanError, match=name):
        SimSettings.from_dict({name: value})
    with pytest.raises(PlanError, match="fixed_s"):
        SimSettings.from_dict({"step_time": {"fixed_s": "fast"}})


def test_cache_must_hold_one_context() -> None:
    """255 usable blocks of 16 are 4,080 tokens, fewer than 4,096: one request could wait for ever."""
    with pytest.raises(PlanError, match="4080"):
        SimSettings(num_blocks=256)
    SimSettings(num_blocks=257)


def test_settings_survive_plain_values() -> None:
    """to_dict and from_dict are inverse; an unknown key is named."""
    settings = SimSettings(
        api_key="sekret",
        faults=("reset:every=3",),
        step_time=StepTimeSettings(overload_after=4),
        max_num_queued_reqs=9,
    )
    assert SimSettings.from_dict(settings.to_dict()) == settings
    with pytest.raises(PlanError, match="max_seqs"):
        SimSettings.from_dict({"max_seqs": 3})
    with pytest.raises(PlanError, match=r"step_time\.base"):
        SimSettings.from_dict({"step_time": {"base": 3}})


def test_key_is_not_in_the_repr() -> None:
    """A log line with the settings does not leak it."""
    assert "sekret" not in repr(SimSettings(api_key="sekret"))


def test_step_time_formula_by_hand() -> None:
    """
    TP 2, 10 decodes, 100 prompt tokens, 1,000 KV entries, 30 unfinished:
    3 + (12 + 0.3 x 10 + 0.02 x 100 + 0.001 x 1000) / 2 + 0.5 + 0.1 x (30 - 20) = 3 + 9 + 0.5 + 1 = 13.5 ms.
    """
    settings = StepTimeSettings(
        fixed_s=0.003,
        weights_s=0.012,
        per_sequence_s=0.0003,
        per_prefill_token_s=0.00002,
        per_kv_token_s=0.000001,
        communication_s=0.0005,
        overload_after=20,
        overload_per_request_s=0.0001,
    )
    step = Step(num_decode_tokens=10, num_prefill_tokens=100, num_kv_tokens=1000)
    assert StepClock(settings, tensor_parallel_size=2, seed=0).duration_ns(step, 30) == 13_500_000


def test_noise_has_mean_one_and_a_seed() -> None:
    """4,000 draws of sigma 0.1: mean within 1 % of the noiseless time; equal seeds give equal times."""
    settings = StepTimeSettings(fixed_s=0.01, weights_s=0.0, noise_sigma=0.1)
    clocks = [StepClock(settings, tensor_parallel_size=1, seed=3) for _ in range(2)]
    drawn = [[clock.duration_ns(Step(), 0) for _ in range(4000)] for clock in clocks]
    assert drawn[0] == drawn[1]
    assert statistics.fmean(drawn[0]) == pytest.approx(10_000_000, rel=0.01)
    assert statistics.stdev(drawn[0]) == pytest.approx(1_000_000, rel=0.1)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        ("  \n ", 0),
        ("hello", 1),
        ("Hello, world!", 4),
        ("a_b 12", 2),
        ("x" * 25, 3),
        ("sort(items):", 5),
        ("日本語", 1),
    ],
)
def test_tokenizer_rule(text: str, count: int) -> None:
    """Runs of up to 12 word characters and single other characters are tokens; white space is none."""
    assert len(Tokenizer(131_072).encode(text)) == count


def test_chat_template_costs_four_a_message_and_two() -> None:
    """2 messages of 1 and 2 tokens: (4 + 1) + (4 + 2) + 2 = 13."""
    ids = Tokenizer(131_072).encode_chat([("system", "hi"), ("user", "hello there")])
    assert len(ids) == 13
    assert all(0 <= number < 131_072 for number in ids)


def test_answers_read_back_as_the_same_tokens() -> None:
    """Each word is one token, and the text of an answer has the ids that the engine made."""
    answer = Answer(12345, 131_072)
    ids = [answer.token_at(position) for position in range(300)]
    assert list(Tokenizer(131_072).encode(answer.text(0, 300))) == ids
    assert len(set(WORDS)) == len(WORDS) == 4096


def test_answer_lengths_have_the_mean_asked_for() -> None:
    """20,000 draws with mean 50: within 2 %, never below 1; a mean of 1 is always 1."""
    drawn = [geometric(seed, 50.0) for seed in range(20_000)]
    assert statistics.fmean(drawn) == pytest.approx(50.0, rel=0.02)
    assert min(drawn) == 1
    assert geometric(5, 1.0) == 1
