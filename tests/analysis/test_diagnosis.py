"""Each limit is named by its signs, and not by signs that look like it."""

import dataclasses
from typing import Any

import pytest

from distbench.analysis.case import LevelCase
from distbench.analysis.diagnosis import REMEDIES, Diagnosis, Limit, diagnose
from distbench.analysis.saturation import judge_level
from distbench.analysis.server_view import ServerView
from tests.analysis.judging import LIMITED, case, engine, full, ladder, server

# A served level between one that had less and one that has no more.
TIMES = {"prefill_time_mean_s": 0.02, "decode_time_mean_s": 1.0, "itl_mean_s": 0.01}
DECODING = {"prompt_tokens": 1000.0, "prompt_tokens_cached": 0.0, "generation_tokens": 9000.0, **TIMES}
PROMPTS = {
    "prompt_tokens": 9000.0,
    "prompt_tokens_cached": 0.0,
    "generation_tokens": 1000.0,
    "prefill_time_mean_s": 0.8,
    "decode_time_mean_s": 0.2,
    "itl_mean_s": 0.02,
}


def limit_at(view: ServerView | None, below: ServerView | None = None, **columns: Any) -> Diagnosis:
    """Diagnose 32 connections, with 16 that gave less and 64 that give no more."""
    subject = case(32, 100.0, view, **columns)
    return diagnosis_of(subject, case(16, 95.0, below), case(64, 100.0, view, **columns))


def diagnosis_of(subject: LevelCase, *others: LevelCase) -> Diagnosis:
    """Diagnose a level among others."""
    levels = ladder(subject, *others)
    return diagnose(subject, judge_level(subject, levels), levels)


CASES: dict[str, tuple[ServerView | None, Limit]] = {
    "running pinned and a queue": (full(16, **DECODING), Limit.SEQUENCES),
    "running pinned and a queue, no times exported": (full(16), Limit.SEQUENCES),
    "the same with much of the cache used": (full(16, kv_usage_mean=0.8, kv_usage_max=0.9), Limit.SEQUENCES),
    "long prompts, pinned, steps not at a budget": (
        full(16, **PROMPTS, step_tokens_mean=300.0),
        Limit.SEQUENCES,
    ),
    "preemptions": (
        full(20, preemptions=40.0, requests_finished=400.0, kv_usage_mean=0.9, kv_usage_max=1.0),
        Limit.KV_MEMORY,
    ),
    "one preemption in a thousand is none": (
        full(16, preemptions=1.0, requests_finished=1000.0),
        Limit.SEQUENCES,
    ),
    "cache full, none preempted": (
        full(20, kv_usage_mean=0.95, kv_usage_max=0.99, running_plateau_ratio=0.3),
        Limit.KV_MEMORY,
    ),
    "no room for one more, pinned": (full(9, kv_usage_mean=0.92, kv_usage_max=0.93), Limit.KV_MEMORY),
    "steps filled to their budget": (
        full(12, **PROMPTS, step_tokens_mean=508.0, running_plateau_ratio=0.4),
        Limit.BATCHED_TOKENS,
    ),
    "filled to the budget though running hardly moves": (
        full(12, **PROMPTS, step_tokens_mean=2040.0),
        Limit.BATCHED_TOKENS,
    ),
    "as large as a budget on average, but half of the steps are small": (
        full(16, **PROMPTS, step_tokens_mean=512.0, step_buckets=((256.0, 0.5), (512.0, 0.7))),
        Limit.SEQUENCES,
    ),
    "filled to the budget in nine of ten steps": (
        full(16, **PROMPTS, step_tokens_mean=512.0, step_buckets=((256.0, 0.1), (512.0, 0.6))),
        Limit.BATCHED_TOKENS,
    ),
    # 100 requests of 90 + 10 tokens are 10,000 booked; at 64 a step there are 0.64 prompts a step, and a third of the steps ends none.
    "long prompts carried over steps leave some that look small": (
        full(3, **PROMPTS, step_tokens_mean=64.0, requests_finished=100.0, step_buckets=((32.0, 0.4),)),
        Limit.BATCHED_TOKENS,
    ),
    # The first token of an answer took no place in the step that ended its prompt: 540 booked are 512 of 10,000 - 500.
    "first tokens are not counted into the budget": (
        full(3, **PROMPTS, step_tokens_mean=539.0, requests_finished=500.0, step_buckets=((256.0, 0.0),)),
        Limit.BATCHED_TOKENS,
    ),
    # A wave of answers of one length ends at once: a quarter of the scrapes finds the slots empty.
    "slots refilled in waves, prompts make most of the tokens": (
        full(16, **PROMPTS, running_mean=14.0, running_plateau_ratio=0.7, running_cap_ratio=0.7),
        Limit.SEQUENCES,
    ),
    "running at its highest now and then": (
        full(16, **PROMPTS, running_mean=12.0, running_plateau_ratio=0.4, running_cap_ratio=0.2),
        Limit.BATCHED_TOKENS,
    ),
    "a queue of prompts without step sizes": (
        full(12, **PROMPTS, running_plateau_ratio=0.3),
        Limit.BATCHED_TOKENS,
    ),
    # A wave of prompts is one step of 2.3 s; the gauges are those before it. By their times 5 % of the requests wait, not 92 %.
    "gauges from before a long step of prompts": (
        full(
            5,
            **(PROMPTS | {"prefill_time_mean_s": 2.3, "decode_time_mean_s": 0.24}),
            waiting_mean=56.0,
            queue_time_mean_s=0.14,
        ),
        Limit.PREFILL,
    ),
    "the same gauges with a queue that takes the time": (
        full(
            5,
            **(PROMPTS | {"prefill_time_mean_s": 0.1, "decode_time_mean_s": 0.24}),
            waiting_mean=56.0,
            queue_time_mean_s=2.6,
        ),
        Limit.SEQUENCES,
    ),
    "no queue, prompts take the time": (
        server(running_mean=31.0, running_max=32.0, **PROMPTS),
        Limit.PREFILL,
    ),
    "no queue, steps grow": (
        server(running_mean=32.0, running_max=32.0, **(DECODING | {"itl_mean_s": 0.02})),
        Limit.DECODE,
    ),
    "no metrics": (None, Limit.NONE_FOUND),
}


@pytest.mark.parametrize(("view", "expected"), CASES.values(), ids=CASES)
def test_limit_is_named(view: ServerView | None, expected: Limit) -> None:
    """The table of limits and of what only looks like them."""
    below = server(running_mean=16.0, running_max=16.0, **DECODING)
    found = limit_at(view, below)
    assert found.limit is expected
    assert found.evidence
    assert bool(found.remedy) is (expected is not Limit.NONE_FOUND)


def test_decode_needs_steps_that_grow() -> None:
    """Steps that stay as they are while throughput is flat are no decode limit."""
    below = server(running_mean=16.0, running_max=16.0, **DECODING)
    assert limit_at(server(running_mean=32.0, running_max=32.0, **DECODING), below).limit is Limit.NONE_FOUND


def test_decode_is_named_where_the_gain_is_within_noise() -> None:
    """5 % more with errors of 3 % each is flat, as the verdict has it; the steps take as much longer as there are more sequences."""
    fewer = case(8, 100.0, server(running_mean=8.0, running_max=8.0, **(DECODING | {"itl_mean_s": 0.032})))
    more = case(32, 105.0, server(running_mean=32.0, running_max=32.0, **(DECODING | {"itl_mean_s": 0.128})))
    noisy = [dataclasses.replace(level, rate_error=3.0) for level in (more, fewer)]
    assert diagnosis_of(*noisy).limit is Limit.DECODE
    assert diagnosis_of(
        dataclasses.replace(more, row={**more.row, "output_token_rate": 120.0}), fewer
    ).limit is (Limit.NONE_FOUND)


def test_decode_is_seen_without_server_times() -> None:
    """The clients' time per token tells as well: it doubles with the connections."""
    levels = [case(2**i, 100.0, None, tpot_p50_s=0.01 * 2**i) for i in range(3)]
    assert diagnosis_of(levels[1], levels[0], levels[2]).limit is Limit.DECODE


def test_nothing_limits_a_level_that_had_room() -> None:
    """A level behind which more is gained has no limit yet, whatever its gauges say."""
    found = diagnosis_of(case(8, 100.0, full(4)), case(16, 150.0))
    assert (found.limit, found.evidence) == (Limit.NONE_FOUND, ("nothing limits it yet",))


def test_level_just_full_is_explained_by_the_one_behind() -> None:
    """With as many connections as sequences nothing waits; the level behind shows that no more than these run."""
    exact = case(16, 100.0, server(running_mean=16.0, running_max=16.0, **DECODING))
    found = diagnosis_of(exact, case(8, 55.0), case(32, 100.0, full(16, **DECODING)))
    assert found.limit is Limit.SEQUENCES
    assert found.evidence[0].startswith("at 32 connections: running stood at 16 of 32")


@pytest.mark.parametrize(("rate_behind", "expected"), [(90.0, Limit.KV_MEMORY), (100.0, Limit.DECODE)])
def test_preemptions_that_make_it_fall_outweigh_growing_steps(rate_behind: float, expected: Limit) -> None:
    """Growing steps explain a flat curve, not a falling one: there the preemptions behind the peak are the limit."""
    growing = DECODING | {"itl_mean_s": 0.02}
    below = case(16, 98.0, server(running_mean=16.0, running_max=16.0, **DECODING))
    peak = case(32, 100.0, server(running_mean=32.0, running_max=32.0, **growing))
    view = full(40, preemptions=50.0, requests_finished=400.0, kv_usage_mean=0.9, kv_usage_max=1.0)
    assert diagnosis_of(peak, below, case(64, rate_behind, view)).limit is expected


def test_client_comes_first() -> None:
    """A level that the client limited names the client, with its evidence."""
    found = diagnosis_of(case(8, 100.0, full(4), client=LIMITED))
    assert found == Diagnosis(limit=Limit.CLIENT, evidence=LIMITED.evidence)


def test_data_parallel_engines_pinned_each() -> None:
    """Two engines pinned at 8 each flicker in their sum and are still limited by sequences."""
    engines = tuple(engine(n, running_plateau_ratio=0.9, waiting_ratio=0.9) for n in "01")
    assert limit_at(full(16, running_plateau_ratio=0.7, engines=engines)).limit is Limit.SEQUENCES


AT_THE_END: dict[str, Any] = {
    "ttft_p50_s": 0.95,
    "e2e_p50_s": 1.0,
    "completion_tokens_mean": 100.0,
    "bundled_ratio": 0.97,
}


@pytest.mark.parametrize(
    ("view", "columns", "expected"),
    [
        (server(ttft_mean_s=0.05, e2e_mean_s=0.98), {}, Limit.NETWORK),
        (full(1, ttft_mean_s=0.6, e2e_mean_s=0.98), {}, Limit.NETWORK),
        (full(1), {}, Limit.NONE_FOUND),
        (server(), {}, Limit.NETWORK),
        (None, {}, Limit.NETWORK),
        (server(ttft_mean_s=0.9, e2e_mean_s=0.98), {}, Limit.NONE_FOUND),
        (server(ttft_mean_s=0.05, e2e_mean_s=0.3), {}, Limit.NONE_FOUND),
        (server(ttft_mean_s=0.05, e2e_mean_s=0.98), {"completion_tokens_mean": 2.0}, Limit.NONE_FOUND),
        (server(ttft_mean_s=0.05, e2e_mean_s=0.98), {"ttft_p50_s": 0.5}, Limit.NONE_FOUND),
        (server(ttft_mean_s=0.05, e2e_mean_s=0.98), {"ttft_p50_s": None}, Limit.NONE_FOUND),
    ],
    ids=[
        "server had it early",
        "the same behind a queue",
        "a queue explains it",
        "server times unknown",
        "no metrics",
        "the server was late itself",
        "the server was done long before",
        "answers too short to tell",
        "streamed",
        "not streaming",
    ],
)
def test_buffering_is_named_at_any_load(
    view: ServerView | None, columns: dict[str, Any], expected: Limit
) -> None:
    """Tokens that come with the end of the answer, though the server had them early, are held back on the way."""
    growing = case(2, 200.0, view, **(AT_THE_END | columns))
    assert diagnosis_of(case(1, 100.0, view, **(AT_THE_END | columns)), growing).limit is expected


def test_means_are_held_against_means() -> None:
    """Half of the first tokens come early and half late, at the server and at the clients alike: the median is no sign of buffering."""
    view = server(ttft_mean_s=0.066, e2e_mean_s=0.088)
    columns: dict[str, Any] = {
        "ttft_p50_s": 0.084,
        "e2e_p50_s": 0.09,
        "completion_tokens_mean": 8.0,
        "bundled_ratio": 0.6,
    }
    by_medians = case(1, 100.0, view, **columns)
    by_means = dataclasses.replace(by_medians, ttft_mean_s=0.068, e2e_mean_s=0.09)
    assert diagnosis_of(by_medians).limit is Limit.NETWORK
    assert diagnosis_of(by_means).limit is not Limit.NETWORK


def test_lumps_under_load_only_are_not_the_network() -> None:
    """A front end that falls behind lumps streams under load; a single connection streams well."""
    view = server(ttft_mean_s=0.05, e2e_mean_s=0.9)
    streamed = case(1, 100.0, view, ttft_p50_s=0.05, e2e_p50_s=1.0, completion_tokens_mean=100.0)
    loaded = case(64, 5000.0, view, **AT_THE_END)
    assert diagnosis_of(loaded, streamed, case(128, 5000.0, view)).limit is not Limit.NETWORK


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (server(running_mean=6.0, ttft_mean_s=0.05, e2e_mean_s=0.4), Limit.SERVER_FRONTEND),
        (server(running_mean=31.0, ttft_mean_s=0.05, e2e_mean_s=0.4), Limit.SERVER_FRONTEND),
        (server(running_mean=31.0, ttft_mean_s=0.05, e2e_mean_s=0.95), Limit.NONE_FOUND),
        (server(running_mean=31.0, ttft_mean_s=0.55, e2e_mean_s=0.95), Limit.NONE_FOUND),
        (full(6, ttft_mean_s=0.05, e2e_mean_s=0.4), Limit.SEQUENCES),
    ],
    ids=["engine idle", "both times", "one sign only", "none", "engine full"],
)
def test_front_end_is_named_by_two_signs(view: ServerView, expected: Limit) -> None:
    """Clients wait for what the engine had long before, or the engine holds few of the requests: two signs are asked for."""
    columns = {"ttft_p50_s": 0.6, "e2e_p50_s": 1.0, "completion_tokens_mean": 50.0, "in_flight_mean": 32.0}
    assert limit_at(view, server(), **columns).limit is expected


def test_every_limit_has_a_remedy() -> None:
    """Whatever is named can be acted on."""
    assert {limit for limit, text in REMEDIES.items() if text} == set(Limit) - {Limit.NONE_FOUND}
