"""Latencies by hand: what each of them is, and what has none."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from distbench.analysis.latency import Gaps, chunk_gaps_us, mean_gap_s, request_latencies
from distbench.analysis.quantiles import mean
from tests.analysis.requests_of import ns, request, table


def listed(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> list[float | None]:
    """Return an array as a list with None for NaN, rounded to the ns."""
    return [None if math.isnan(v) else round(float(v), 9) for v in values]


def chunks(*parts: list[list[int] | None]) -> pa.ChunkedArray[Any]:
    """Return a column of chunk times, one Arrow array per part."""
    return pa.chunked_array([pa.array(part, pa.list_(pa.uint32())) for part in parts])


def test_ttft_and_tpot_of_several_tokens_per_chunk() -> None:
    """Chunks at 100/140/180/200 ms with 1/4/4/2 tokens: TPOT is 10 ms by tokens, the chunk gap 33.3 ms is another thing."""
    row = request(0.0, [0.1, 0.14, 0.18, 0.2], completion_tokens=11, chunk_tokens=[1, 4, 4, 2])
    rows = table([row])
    latencies = request_latencies(rows)
    assert listed(latencies.ttft) == [0.1]
    assert listed(latencies.tpot) == [0.01]
    assert listed(latencies.e2e) == [0.2]
    assert mean_gap_s(rows["chunk_us"])[0] == pytest.approx(0.1 / 3)


def test_tpot_divides_by_tokens_not_chunks() -> None:
    """4 chunks of 3 tokens at 0.5..0.8 s, usage 12: TPOT = 0.3 / 11 = 27.27 ms."""
    rows = table([request(0.0, [0.5, 0.6, 0.7, 0.8], completion_tokens=12)])
    assert request_latencies(rows).tpot[0] == pytest.approx(0.3 / 11)


def test_short_outputs_have_no_tpot() -> None:
    """Outputs of 1, 0 and 11 tokens: TPOT null, null, 50 ms, and the mean is over one value."""
    rows = table(
        [
            request(0.0, [0.5], completion_tokens=1),
            request(0.0, [], end=0.5, completion_tokens=0),
            request(0.0, [0.5, 1.0], completion_tokens=11),
        ]
    )
    tpot = request_latencies(rows).tpot
    assert listed(tpot) == [None, None, 0.05]
    assert mean(tpot) == pytest.approx(0.05)


def test_tokens_of_one_read_have_no_tpot() -> None:
    """Eleven tokens in a single read show no time between tokens; 0 would pass every SLO."""
    rows = table([request(0.0, [0.5], completion_tokens=11)])
    assert listed(request_latencies(rows).tpot) == [None]


def test_the_time_to_the_first_chunk_is_no_gap() -> None:
    """Sent at 0, chunks at 500/520/540 ms: gaps are 20 and 20 ms, one fewer than chunks."""
    rows = table([request(0.0, [0.5, 0.52, 0.54]), request(1.0, [1.1]), request(2.0, [2.5, 2.51])])
    assert chunk_gaps_us(rows["chunk_us"]).tolist() == [20_000, 20_000, 10_000]


def test_gaps_do_not_cross_empty_streams_or_batches() -> None:
    """Null and empty streams, first, last and in between, add no gap; pooled parts equal the whole."""
    lists: list[list[int] | None] = [None, [], [5, 9], [], None, [1], [2, 2, 7], []]
    assert chunk_gaps_us(chunks(lists)).tolist() == [4, 0, 5]
    assert chunk_gaps_us(chunks(lists[:3], lists[3:])).tolist() == [4, 0, 5]
    assert chunk_gaps_us(chunks([None, []])).tolist() == []
    parts = Gaps()
    for part in (lists[:4], lists[4:]):
        parts.add(chunks(part))
    assert (parts.num_gaps, parts.num_bundled) == (3, 1)


def test_bundled_chunks_are_left_out_and_their_share_is_told() -> None:
    """Chunks at 100, 100, 120, 140, 140 ms: gaps of 20 and 20 ms remain, 2 of 4 were bundled."""
    rows = table([request(0.0, [0.1, 0.1, 0.12, 0.14, 0.14])])
    gaps = Gaps()
    gaps.add(rows["chunk_us"])
    assert gaps.bundled_ratio == 0.5
    assert gaps.quantiles_s([0.0, 0.5, 1.0]) == pytest.approx([0.02, 0.02, 0.02])
    assert mean_gap_s(rows["chunk_us"])[0] == pytest.approx(0.02)


def test_no_gap_is_no_ratio() -> None:
    """Without a second chunk nothing is known of bundling or gaps."""
    rows = table([request(0.0, [0.1]), request(0.0, [])])
    gaps = Gaps()
    gaps.add(rows["chunk_us"])
    assert gaps.bundled_ratio is None
    assert gaps.quantiles_s([0.5]) == [None]
    assert listed(mean_gap_s(rows["chunk_us"])) == [None, None]


def test_reasoning_comes_before_the_answer() -> None:
    """Reasoning from 80 ms, answer at 900 ms: TTFT 80 ms, TTFO 900 ms; an answer that never came is null."""
    rows = table(
        [
            request(0.0, [0.08, 0.1, 0.9], first_answer_ns=ns(0.9)),
            request(0.0, [0.08, 0.1], first_answer_ns=None),
        ]
    )
    latencies = request_latencies(rows)
    assert listed(latencies.ttft) == [0.08, 0.08]
    assert listed(latencies.ttfo) == [0.9, None]


def test_an_answer_in_one_piece_has_only_e2e() -> None:
    """Not streamed: headers at 0.2 s, body at 2.0 s, 40 tokens: E2E 2 s, TTFT and TPOT null."""
    rows = table([request(0.0, end=2.0, streamed=False, completion_tokens=40, first_byte_ns=ns(0.2))])
    latencies = request_latencies(rows)
    assert listed(latencies.e2e) == [2.0]
    assert (listed(latencies.ttft), listed(latencies.tpot)) == ([None], [None])


def test_queueing_in_the_client_is_in_the_response_time_only() -> None:
    """Due at 0/.1/.2/.3 s, one at a time, 0.5 s each: E2E 0.5 s; lag 0/.4/.8/1.2 s; response .5/.9/1.3/1.7 s, mean 1.1 s."""
    rows = table([request(0.5 * i, [0.5 * i + 0.5], scheduled=0.1 * i) for i in range(4)])
    latencies = request_latencies(rows)
    assert listed(latencies.e2e) == [0.5] * 4
    assert listed(latencies.send_lag) == [0.0, 0.4, 0.8, 1.2]
    assert listed(latencies.response) == [0.5, 0.9, 1.3, 1.7]
    assert mean(latencies.response) == pytest.approx(1.1)


def test_closed_loop_has_no_response_time() -> None:
    """Without a schedule there is neither response time nor send lag."""
    latencies = request_latencies(table([request(0.0, [0.1])]))
    assert (listed(latencies.response), listed(latencies.send_lag)) == ([None], [None])


def test_failures_have_no_latency() -> None:
    """Durations .20, .25, timeout, .15 s: the mean is 0.20 s over three, whatever stamps the fourth has."""
    rows = table(
        [
            request(0.0, [0.2]),
            request(0.0, [0.25]),
            request(0.0, [0.1], end=1.0, outcome="failed", error_kind="total_timeout"),
            request(0.0, [0.15]),
        ]
    )
    latencies = request_latencies(rows)
    assert listed(latencies.e2e) == [0.2, 0.25, None, 0.15]
    assert mean(latencies.e2e) == pytest.approx(0.2)


def test_a_negative_interval_is_a_fault_not_data() -> None:
    """A token before its request is left out and counted."""
    latencies = request_latencies(
        table([request(1.0, [0.9, 1.5], chunk_us=[0, 500_000]), request(0.0, [0.5])])
    )
    assert listed(latencies.ttft) == [None, 0.5]
    assert latencies.num_negative == 2  # ttft, and ttfo with it


def test_a_retry_counts_from_the_last_attempt() -> None:
    """First sent at 0, again at 2.0 s, answered 0.5 s later: E2E 0.5 s; against the schedule 2.5 s."""
    rows = table([request(2.0, [2.5], first_sent_ns=0, scheduled=0.0, attempts=2)])
    latencies = request_latencies(rows)
    assert (listed(latencies.e2e), listed(latencies.response)) == ([0.5], [2.5])
