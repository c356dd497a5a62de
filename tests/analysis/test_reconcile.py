"""Clients' sums against servers' counters: the same population, a range where the client cannot know, a reason for everything."""

from __future__ import annotations

import math

import pytest

from distbench.analysis.reconcile import (
    Check,
    ClientSums,
    Reconciliation,
    ServerDeltas,
    client_sums,
    held,
    little,
    reconcile,
)
from tests.analysis.requests_of import request, steady, table


def named(result: Reconciliation, name: str) -> Check:
    """Return the check of a name."""
    return next(check for check in result.checks if check.name == name)


def exact() -> ClientSums:
    """Return the sums of 10 answered requests and none other."""
    return ClientSums(answered=10, unfinished=0, prompt_tokens=1_000, completion_tokens=500)


def test_equal_figures_reconcile_without_a_word() -> None:
    """Everything equal: passed, no reason needed."""
    deltas = ServerDeltas(
        requests_finished=10,
        prompt_tokens=1_000,
        completion_tokens=500,
        finished_prompt_tokens=1_000,
        finished_completion_tokens=500,
    )
    result = reconcile(exact(), deltas)
    assert result.reconciled is True
    assert not result.foreign_traffic
    assert [check.reason for check in result.checks] == [None] * 5
    assert result.problem is None


def test_aborted_requests_disagree_by_design() -> None:
    """10 answered, 5 aborted, prompts of 301 each: the server finished 10 but has the prompts of 15, and both are right."""
    rows = [request(0.0, [1.0, 2.0], prompt_tokens=301, max_tokens=20) for _ in range(10)]
    rows += [
        request(0.0, [1.0], end=1.5, outcome="cut", expected_prompt_tokens=301, max_tokens=20)
        for _ in range(5)
    ]
    sums = client_sums(table(rows))
    assert (sums.answered, sums.unfinished) == (10, 5)
    assert (sums.prompt_tokens, sums.unfinished_prompt_max) == (3_010, 1_505)
    assert (sums.unfinished_completion_seen, sums.unfinished_completion_max) == (5, 100)
    result = reconcile(
        sums,
        ServerDeltas(
            requests_finished=10, prompt_tokens=4_515, completion_tokens=27, finished_prompt_tokens=3_010
        ),
    )
    assert result.reconciled is True
    assert not result.foreign_traffic
    assert named(result, "requests finished").reason is None
    assert (
        named(result, "prompt tokens").reason == "within what requests that were cut or failed may have cost"
    )


def test_a_surplus_is_foreign_traffic() -> None:
    """The server finished 14 where the clients had 10 answered and nothing cut: somebody else was there."""
    result = reconcile(exact(), ServerDeltas(requests_finished=14, prompt_tokens=1_000))
    assert result.reconciled is False
    assert result.foreign_traffic
    assert (
        result.problem
        == "requests finished: the servers counted 14, the clients can explain 10: other traffic"
    )


def test_a_deficit_fails_but_is_not_foreign() -> None:
    """The server counted fewer tokens than arrived: a fault (or a restart), not traffic."""
    result = reconcile(exact(), ServerDeltas(completion_tokens=400))
    assert result.reconciled is False
    assert not result.foreign_traffic
    assert named(result, "output tokens").reason is not None
    assert "are missing" in str(named(result, "output tokens").reason)


def test_a_small_difference_is_named_with_the_tolerance() -> None:
    """5001 tokens against 5000 are within 0.1 %, and the check says so; 5006 are not."""
    sums = ClientSums(answered=10, unfinished=0, prompt_tokens=5_000, completion_tokens=500)
    passed = named(reconcile(sums, ServerDeltas(prompt_tokens=5_001)), "prompt tokens")
    assert (passed.passed, passed.reason) == (True, "within the tolerance of 0.1%")
    assert named(reconcile(sums, ServerDeltas(prompt_tokens=5_006)), "prompt tokens").passed is False


def test_what_is_not_exported_is_not_checked() -> None:
    """No counter, no check, no verdict; the reason is there."""
    result = reconcile(exact(), ServerDeltas())
    assert result.reconciled is None
    assert {check.reason for check in result.checks} == {"the server does not export it"}
    assert reconcile(exact(), ServerDeltas(requests_finished=10)).reconciled is True


def test_answers_without_token_counts_cannot_be_checked_for_tokens() -> None:
    """One answer without usage: requests are checked, tokens are not."""
    rows = [request(0.0, [1.0], prompt_tokens=5), request(0.0, [1.0])]
    result = reconcile(client_sums(table(rows)), ServerDeltas(requests_finished=2, prompt_tokens=99))
    assert result.reconciled is True
    assert named(result, "prompt tokens").reason == "1 answers came without a token count"


def test_warm_up_counts_and_what_was_never_sent_does_not() -> None:
    """The counters run over the warm-up too; refused connections and dropped slots never reached the server."""
    rows = [
        request(0.0, [1.0], prompt_tokens=5, phase="warmup"),
        request(0.0, [1.0], prompt_tokens=5),
        request(None, end=1.0, outcome="failed", error_kind="connect"),
        request(None, outcome="dropped"),
    ]
    sums = client_sums(table(rows))
    assert (sums.answered, sums.unfinished, sums.prompt_tokens) == (2, 0, 10)


def test_retries_and_lost_requests_widen_the_range() -> None:
    """An answer at the third attempt may have cost two prompts more; what a dead client sent, nobody knows."""
    sums = client_sums(table([request(0.0, [1.0], prompt_tokens=7, max_tokens=4, attempts=3)]))
    assert (sums.unfinished, sums.unfinished_prompt_max, sums.unfinished_completion_max) == (2, 14.0, 8.0)
    lost = client_sums(table([request(0.0, [1.0], prompt_tokens=7), request(None, outcome="lost")]))
    assert (lost.unfinished, lost.unfinished_completion_max) == (1, math.inf)
    result = reconcile(lost, ServerDeltas(requests_finished=2, prompt_tokens=14, completion_tokens=900))
    assert result.reconciled is True


def test_nothing_at_all_reconciles_with_nothing() -> None:
    """No rows and no growth agree; no rows and growth is foreign."""
    sums = client_sums(table([]))
    assert reconcile(sums, ServerDeltas(requests_finished=0, prompt_tokens=0)).reconciled is True
    assert reconcile(sums, ServerDeltas(requests_finished=1)).foreign_traffic


def test_littles_law_holds_in_a_steady_loop() -> None:
    """4 connections, 0.5 s a request: 8 ends/s x 0.5 s = 4 in flight. Three seen are one too few."""
    rows = table(steady(connections=4, per_connection=40, service_s=0.5))
    window = {"start_ns": 10**9, "end_ns": 19 * 10**9}
    good = little(rows, in_flight_mean=4.0, **window)
    assert good.client == pytest.approx(4.0)
    assert good.passed is True
    bad = little(rows, in_flight_mean=3.0, **window)
    assert bad.passed is False
    assert bad.reason is not None
    nothing = little(table([]), in_flight_mean=4.0, **window)
    assert nothing.passed is None


def test_asked_connected_and_in_flight_agree_or_not() -> None:
    """100 asked, 100 connected, 96.9 in flight: the last is below 97 %; unknown is not a failure."""
    connected, flying = held(asked=100, connected_mean=100.0, in_flight_mean=96.9)
    assert (connected.passed, flying.passed) == (True, False)
    assert flying.reason == "100 were asked, 96.9 were held: less than 97%"
    assert held(asked=100, connected_mean=None, in_flight_mean=97.0)[0].passed is None
    assert held(asked=100, connected_mean=None, in_flight_mean=97.0)[1].passed is True
