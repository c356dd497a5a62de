"""A level's row by hand, from the stamps of its requests to the columns of levels.parquet."""

from __future__ import annotations

from typing import Any

import pytest

from distbench.analysis.level_row import empty_level_row, merged, to_table
from distbench.analysis.summary import (
    CHUNK_COLUMNS,
    ROW_COLUMNS,
    LevelSummary,
    meets_all,
    summarize_level,
)
from distbench.analysis.tallies import count_errors
from distbench.core.levels import LevelSpec
from distbench.core.plan import Slo
from distbench.store.schema import LEVELS
from tests.analysis.requests_of import request, steady, table

LATENCY_NAMES = ("ttft", "ttfo", "tpot", "icl", "e2e", "response")


def summary_of(rows: list[dict[str, Any]], **changes: Any) -> LevelSummary:
    """Return the summary of a level of one client and one target."""
    settings: dict[str, Any] = {"connections": 2, "requests": len(rows), "warmup": 0} | changes
    slos = settings.pop("slos", ())
    return summarize_level(
        LevelSpec(level=0, **settings),
        table(rows),
        num_clients=1,
        num_targets=1,
        slos=slos,
    )


def steady_level() -> list[dict[str, Any]]:
    """Return 2 connections x 10 requests of 1 s, 10 tokens each, 20 of prompt, 5 of them cached."""
    return steady(
        connections=2, per_connection=10, service_s=1.0, prompt_tokens=20, cached_tokens=5, max_tokens=10
    )


def test_rates_and_latencies_of_a_steady_level() -> None:
    """
    2 connections of 1 s requests with 10 tokens: 2 requests/s, 20 output tokens/s, 60 tokens/s with the prompts.

    The window is (1 s, 9 s]. Sent inside are those of 1..9 s, 9 on each connection. TTFT 0.1 s, TPOT 0.9/9 = 0.1 s, E2E 1 s.
    """
    row = summary_of(steady_level()).row
    assert (row["window_s"], row["whole_s"]) == (8.0, 10.0)
    assert row["request_rate"] == pytest.approx(2.0)
    assert row["output_token_rate"] == pytest.approx(20.0)
    assert row["total_token_rate"] == pytest.approx(60.0)
    assert row["user_message_rate"] == pytest.approx(2.0)
    assert row["request_rate_whole"] == pytest.approx(2.0)
    assert row["total_token_rate_whole"] == pytest.approx(60.0)
    assert [row[f"{name}_n"] for name in LATENCY_NAMES] == [18, 18, 18, 18 * 9, 18, 0]
    assert row["ttft_p50_s"] == pytest.approx(0.1)
    assert row["tpot_p90_s"] == pytest.approx(0.1)
    assert row["icl_p99_s"] == pytest.approx(0.1)
    assert row["e2e_p99_s"] == pytest.approx(1.0)
    assert row["response_p50_s"] is None
    assert row["in_flight_mean"] == pytest.approx(2.0)
    assert row["bundled_ratio"] == 0.0
    assert row["cached_tokens_ratio"] == 0.25
    assert (row["prompt_tokens_mean"], row["completion_tokens_mean"]) == (20.0, 10.0)
    assert row["turnaround_ratio"] == pytest.approx(0.0)
    assert row["goodput_rate"] is None
    assert (row["requests_planned"], row["requests_ok"]) == (20, 20)
    assert (row["valid"], row["invalid_reason"]) == (True, None)


def test_means_are_of_the_same_requests_as_the_quantiles() -> None:
    """Every third first token comes after 0.1 s, the others after 0.4 s: a mean of 0.3 s, where the median says 0.4 s."""
    rows = [
        request(float(i), [i + (0.1 if i % 3 == 0 else 0.4), i + 1.0], connection=0, index=i)
        for i in range(13)
    ]
    found = summary_of(rows, connections=1)
    assert found.row["ttft_n"] == 12
    assert found.row["ttft_p50_s"] == pytest.approx(0.4)
    assert found.ttft_mean_s == pytest.approx(0.3)
    assert found.e2e_mean_s == pytest.approx(1.0)


def test_ramp_and_tail_do_not_halve_the_throughput() -> None:
    """Three requests of 10 s and one of 30 s at 10 tokens/s each: whole level 600/30 = 20, the full part 40 tokens/s."""
    ends = [10, 10, 10, 30]
    rows = [
        request(0.0, [k / 10 for k in range(1, 10 * end + 1)], connection=i) for i, end in enumerate(ends)
    ]
    row = summary_of(rows, connections=4).row
    assert row["output_token_rate_whole"] == pytest.approx(20.0)
    assert row["output_token_rate"] == pytest.approx(40.0)
    assert not row["valid"]


def test_all_failed_is_a_row_of_nulls_without_a_crash() -> None:
    """10 answers of 401: 0 of 10 ok, every latency null with n = 0, the error with its text, not valid."""
    rows = [
        request(
            0.1 * i,
            end=0.1 * i + 0.05,
            outcome="failed",
            error_kind="http_4xx",
            http_status=401,
            error_text="bad key",
        )
        for i in range(10)
    ]
    summary = summary_of(rows, connections=1)
    row = summary.row
    assert (row["requests_ok"], row["requests_failed"]) == (0, 10)
    assert all(row[f"{name}_{q}_s"] is None for name in LATENCY_NAMES for q in ("p50", "p90", "p99"))
    assert all(row[f"{name}_n"] == 0 for name in LATENCY_NAMES)
    assert row["request_rate"] == 0.0
    assert not row["valid"]
    (error,) = summary.errors
    assert (error.kind, error.count, error.http_status, error.text) == ("http_4xx", 10, 401, "bad key")
    assert to_table([row]).num_rows == 1


def test_nothing_sent_says_so() -> None:
    """A level of dropped slots has no window, no rate, and a reason."""
    row = summary_of(
        [request(None, outcome="dropped", scheduled=1.0, connection=-1)], pattern="constant", rate_rps=1.0
    ).row
    assert (row["window_s"], row["request_rate"], row["valid"]) == (None, None, False)
    assert row["invalid_reason"] == "no request was sent"
    assert row["requests_dropped"] == 1


def test_cut_requests_are_neither_failures_nor_latencies() -> None:
    """10 s limit, 5 in flight at the limit: 5 cut, 0 failed; their tokens count in the window, their latencies nowhere."""
    done = steady(connections=5, per_connection=3, service_s=3.0, num_tokens=30)
    cut = [
        request(9.0, [9.1 + 0.1 * k for k in range(10)], end=10.0, outcome="cut", connection=c)
        for c in range(5)
    ]
    row = summary_of(done + cut, connections=5, requests=None, duration_s=10.0).row
    assert (row["requests_cut"], row["requests_failed"], row["requests_ok"]) == (5, 0, 15)
    # Window (3, 10]: every connection gives 10 tokens/s to its very end.
    assert row["output_token_rate"] == pytest.approx(50.0)
    assert row["e2e_n"] == 10
    # Whole level: the answered ones only, over 10 s.
    assert row["output_token_rate_whole"] == pytest.approx(45.0)
    assert row["request_rate"] == pytest.approx((10 + 5 / 3) / 7)


def test_goodput_counts_requests_that_meet_every_slo() -> None:
    """Two connections, one with TTFT 0.1 s, one with 0.5 s: at ttft <= 0.2 s half of the 2 requests/s are good."""
    quick = steady(connections=1, per_connection=10, service_s=1.0)
    slow = [request(float(i), [i + 0.5, i + 1.0], connection=1) for i in range(10)]
    slos = (Slo(metric="ttft", limit_s=0.2), Slo(metric="e2e", limit_s=1.5))
    assert summary_of(quick + slow, slos=slos).row["goodput_rate"] == pytest.approx(1.0)


def test_an_unknown_latency_meets_no_slo() -> None:
    """One token has no TPOT, a failure has nothing: neither is good, however generous the bound; at the bound is good."""
    rows = table(
        [
            request(0.0, [0.5]),
            request(0.0, [0.5, 0.6]),
            request(0.0, [0.5, 0.6], outcome="failed"),
            request(0.0, [0.5, 0.7, 0.7]),
        ]
    )
    assert meets_all(rows, [Slo(metric="tpot", limit_s=9.0)]).tolist() == [False, True, False, True]
    assert meets_all(rows, [Slo(metric="icl", limit_s=0.1)]).tolist() == [False, True, False, False]
    assert meets_all(rows, [Slo(metric="ttft", limit_s=0.5)]).tolist() == [True, True, False, True]


def test_tokens_nobody_told_of_are_unknown_not_zero() -> None:
    """Without usage and chunks the token rates are null; the request rate is not."""
    rows = [request(float(i), end=i + 1.0, streamed=False, connection=0) for i in range(10)]
    row = summary_of(rows, connections=1).row
    assert (row["output_token_rate"], row["total_token_rate"], row["output_token_rate_whole"]) == (
        None,
        None,
        None,
    )
    assert row["request_rate"] == pytest.approx(1.0)


def test_a_request_recorded_twice_makes_the_level_invalid() -> None:
    """The same id in two rows may be load sent twice."""
    rows = steady_level()
    rows[3]["request_id"] = rows[4]["request_id"] = 77
    row = summary_of(rows).row
    assert not row["valid"]
    assert "recorded twice (such as request 77)" in row["invalid_reason"]


def test_parts_give_the_same_row_as_the_whole() -> None:
    """Rows without chunk times, and the chunk times in parts, give what the whole table gives."""
    spec = LevelSpec(level=0, connections=2, requests=20, warmup=0)
    whole = table(steady_level())
    slos = (Slo(metric="icl", limit_s=0.2),)
    together = summarize_level(spec, whole, num_clients=1, num_targets=1, slos=slos)
    parts = [whole.select(CHUNK_COLUMNS).slice(at, 6) for at in range(0, 20, 6)]
    apart = summarize_level(
        spec, whole.select(ROW_COLUMNS), num_clients=1, num_targets=1, slos=slos, chunk_batches=parts
    )
    assert apart.row == pytest.approx(together.row)
    assert apart.slice_rates == pytest.approx(together.slice_rates)


def test_send_lag_and_response_belong_to_the_open_loop() -> None:
    """A slot each 0.5 s, sent 0.1 s late, served in 0.3 s: lag 0.1 s, response 0.4 s; no turnaround, idling is by plan."""
    rows = [request(0.5 * i + 0.1, [0.5 * i + 0.4], scheduled=0.5 * i) for i in range(40)]
    row = summary_of(rows, connections=4, pattern="constant", rate_rps=2.0).row
    assert row["send_lag_p99_s"] == pytest.approx(0.1)
    assert row["response_p50_s"] == pytest.approx(0.4)
    assert row["offered_rate"] == 2.0
    assert row["turnaround_ratio"] is None


def test_client_lag_and_stamps() -> None:
    """The lag's p99 is over each request's worst; half of the requests were stamped in user space."""
    rows = steady_level()
    for i, row in enumerate(rows):
        row |= {"client_lag_us": 1_000, "stamp": "user" if i % 2 else "kernel"}
    summary = summary_of(rows)
    assert summary.row["client_lag_p99_s"] == pytest.approx(0.001)
    assert summary.user_stamps_ratio == 0.5
    assert summary.target_requests == {"http://h:1/v1": 20}


def test_errors_are_counted_by_kind_the_most_frequent_first() -> None:
    """Each kind with one example; other outcomes are no errors."""
    rows = table(
        [
            request(0.0, end=1.0, outcome="failed", error_kind="reset"),
            request(
                0.0,
                end=1.0,
                outcome="failed",
                error_kind="http_5xx",
                http_status=503,
                error_text="queue full",
            ),
            request(0.0, end=1.0, outcome="failed", error_kind="http_5xx", http_status=500),
            request(0.0, end=1.0, outcome="cut"),
        ]
    )
    assert [(e.kind, e.count, e.http_status) for e in count_errors(rows)] == [
        ("http_5xx", 2, 503),
        ("reset", 1, None),
    ]


def test_level_rows_have_every_column_and_no_other() -> None:
    """A row starts empty, takes what others know, and refuses what no column is for."""
    row = empty_level_row(level=3, pattern="burst")
    assert list(row) == LEVELS.names
    both = merged(row, {"running_mean": 2.5}, {"verdict": "saturated"})
    table_of_one = to_table([both])
    assert table_of_one.schema.equals(LEVELS)
    assert table_of_one.to_pylist()[0]["running_mean"] == 2.5
    assert table_of_one.to_pylist()[0]["waiting_mean"] is None
    with pytest.raises(ValueError, match="no column running"):
        merged(row, {"running": 1})
