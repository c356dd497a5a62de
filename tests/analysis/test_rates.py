"""Rates by hand: tokens by their own times, requests by their share inside the window."""

from __future__ import annotations

import math
from typing import Any

import pytest

from distbench.analysis.rates import WindowSums, answered_share, expected_of, whole_sums
from distbench.analysis.windows import Window
from tests.analysis.requests_of import ns, request, table


def sums(rows: list[dict[str, Any]], start: float, end: float) -> WindowSums:
    """Return the sums of rows over a window in seconds."""
    window = Window(
        start_ns=round(start * 1e9),
        end_ns=round(end * 1e9),
        level_start_ns=0,
        level_end_ns=10**12,
        opened=True,
        num_ended=0,
        client_ends_ns={},
        uneven_ratio=None,
        reasons=(),
    )
    made = table(rows)
    out = WindowSums(window, expected_of(made))
    out.add(made)
    return out


def test_tokens_count_by_their_own_times() -> None:
    """Chunks at 1, 2, 3, 4 s, window (1, 3]: two of four tokens, half a request, and half of a slice's rate per slice hit."""
    out = sums([request(0.0, [1.0, 2.0, 3.0, 4.0])], 1.0, 3.0)
    assert (out.output_tokens, out.requests) == (2.0, 0.5)
    # 30 slices of 1/15 s: the tokens at 2 s and 3 s close slices 15 and 30; each is 1 token in 1/15 s.
    rates = out.slice_rates()
    assert [i for i, rate in enumerate(rates) if rate] == [14, 29]
    assert rates[14] == pytest.approx(15.0)
    assert sum(rates) / len(rates) == pytest.approx(1.0)


def test_neighbouring_windows_share_no_token() -> None:
    """A token on the edge belongs to the window that ends there."""
    rows = [request(0.0, [1.0, 2.0, 3.0])]
    assert [sums(rows, a, a + 1).output_tokens for a in (0.0, 1.0, 2.0)] == [1.0, 1.0, 1.0]


def test_usage_spreads_over_chunks_evenly_where_steps_are_unknown() -> None:
    """12 tokens in 4 chunks: a chunk stands for 3."""
    assert sums([request(0.0, [1.0, 2.0, 3.0, 4.0], completion_tokens=12)], 0.0, 1.0).output_tokens == 3.0


def test_known_steps_weigh_the_chunks() -> None:
    """Chunks of 1, 4, 4 and 2 tokens: the first two bear 5 of 11."""
    row = request(0.0, [1.0, 2.0, 3.0, 4.0], completion_tokens=11, chunk_tokens=[1, 4, 4, 2])
    out = sums([row, request(0.0, [1.0, 2.0])], 0.0, 2.0)
    assert out.output_tokens == pytest.approx(5 + 2)
    assert out.requests == pytest.approx(5 / 11 + 1)


def test_lockstep_batches_are_not_cut() -> None:
    """
    Two batches of 10 requests, 1..10 s and 11..20 s, a token each second, window (5, 15]: 100 tokens and 10 requests, 1 request/s.

    By ends it would be the 10 of the first batch or none, by starts those of the second.
    """
    batches = [
        request(10.0 * b, [10.0 * b + k for k in range(1, 11)], connection=c)
        for b in (0, 1)
        for c in range(10)
    ]
    out = sums(batches, 5.0, 15.0)
    assert (out.output_tokens, out.requests) == pytest.approx((100.0, 10.0))


def test_prompt_tokens_count_at_the_first_token() -> None:
    """The prompt is there, or not, as a whole."""
    rows = [
        request(0.0, [1.0, 5.0], prompt_tokens=100),
        request(0.0, [3.0, 5.0], prompt_tokens=40),
        request(0.0, [3.0, 5.0]),
    ]
    assert sums(rows, 2.0, 6.0).prompt_tokens == 40.0


def test_an_answer_in_one_piece_is_spread_evenly() -> None:
    """Not streamed, 0..10 s, 50 tokens, 20 of prompt, window (5, 20]: half of each."""
    row = request(0.0, end=10.0, streamed=False, completion_tokens=50, prompt_tokens=20)
    out = sums([row], 5.0, 20.0)
    assert (out.output_tokens, out.prompt_tokens, out.requests) == (25.0, 10.0, 0.5)
    assert sum(out.slice_rates()) / 30 * 15 == pytest.approx(25.0)


def test_failures_produce_nothing() -> None:
    """What a failed request had streamed is not throughput; nor is the warm-up."""
    rows = [
        request(0.0, [1.0, 2.0], outcome="failed", error_kind="stream_error", completion_tokens=2),
        request(0.0, [1.0, 2.0], phase="warmup"),
        request(None, outcome="lost"),
        request(None, outcome="dropped"),
    ]
    out = sums(rows, 0.0, 10.0)
    assert (out.output_tokens, out.requests, out.user_messages) == (0.0, 0.0, 0.0)
    assert sum(out.slice_rates()) == 0.0


def test_a_cut_request_counts_by_what_came_of_what_would_have() -> None:
    """Cut after 3 tokens of 12 asked, where answers hold all they are asked for: 3 tokens, a quarter of a request."""
    rows = [
        request(0.0, [1.0, 2.0], completion_tokens=12, max_tokens=12, prompt_tokens=30),
        request(2.0, [3.0, 4.0, 5.0], end=5.0, outcome="cut", max_tokens=12),
    ]
    out = sums(rows, 2.0, 10.0)
    assert (out.output_tokens, out.requests) == (3.0, 0.25)
    assert out.prompt_tokens == 30.0  # not known of it: as of the others


def test_a_cut_request_is_measured_by_the_answers_where_nothing_was_asked() -> None:
    """Answers of 6 tokens on average, cut after 3: half a request; cut after 9: one, not more."""
    answered = request(0.0, [0.1], completion_tokens=6)
    short = request(1.0, [2.0, 3.0, 4.0], end=4.0, outcome="cut")
    long = request(1.0, [1.0 + 0.1 * k for k in range(1, 10)], end=4.0, outcome="cut")
    assert sums([answered, short], 1.0, 9.0).requests == pytest.approx(0.5)
    assert sums([answered, long], 1.0, 9.0).requests == pytest.approx(1.0)


def test_clamped_answers_count_their_answered_share() -> None:
    """4 messages packed, 40 tokens asked, 10 given with finish_reason length: one message was answered; stop is a whole answer."""
    rows = table(
        [
            request(0.0, [1.0], user_messages=4, max_tokens=40, completion_tokens=10, finish_reason="length"),
            request(0.0, [1.0], user_messages=4, max_tokens=40, completion_tokens=10, finish_reason="stop"),
            request(0.0, [1.0], user_messages=4, max_tokens=40, completion_tokens=40, finish_reason="length"),
            request(0.0, [1.0], user_messages=4, completion_tokens=10, finish_reason="length"),
        ]
    )
    assert answered_share(rows).tolist() == [0.25, 1.0, 1.0, 1.0]
    assert whole_sums(rows).user_messages == 1 + 4 + 4 + 4


def test_whole_level_counts_answers_only() -> None:
    """Answered requests with their tokens; cut and failed ones are beside the point; unknown is None, not zero."""
    rows = table(
        [
            request(0.0, [1.0], completion_tokens=7, prompt_tokens=3),
            request(0.0, [1.0], outcome="cut"),
            request(0.0, end=1.0, streamed=False),
        ]
    )
    whole = whole_sums(rows)
    assert (whole.requests, whole.output_tokens, whole.prompt_tokens) == (2, 7, 3)
    unknown = whole_sums(table([request(0.0, end=1.0, streamed=False)]))
    assert (unknown.output_tokens, unknown.prompt_tokens) == (None, None)


def test_expected_of_nothing_is_not_known() -> None:
    """Without an answer there is no mean to go by; a cut request then counts against what it was asked for."""
    cut = request(0.0, [1.0, 2.0], end=2.0, outcome="cut", max_tokens=8)
    assert math.isnan(expected_of(table([cut])).completion_mean)
    assert sums([cut], 0.0, 5.0).requests == pytest.approx(0.25)


def test_parts_add_up_to_the_whole() -> None:
    """A level given in parts has the same sums."""
    rows = [
        request(0.1 * i, [0.1 * i + 0.3, 0.1 * i + 0.7], prompt_tokens=i, scheduled=ns(None))
        for i in range(20)
    ]
    whole = sums(rows, 0.5, 1.5)
    made = table(rows)
    parts = WindowSums(whole._window, expected_of(made))
    for at in range(0, 20, 7):
        parts.add(made.slice(at, 7))
    assert parts.output_tokens == pytest.approx(whole.output_tokens)
    assert parts.requests == pytest.approx(whole.requests)
    assert parts.prompt_tokens == pytest.approx(whole.prompt_tokens)
    assert parts.slice_rates() == pytest.approx(whole.slice_rates())
