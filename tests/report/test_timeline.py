"""Series over time: few steps whatever the length, gaps stay gaps, engines are added rightly."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from distbench.report.spread import client_health
from distbench.report.timeline import MAX_BINS, make_timeline
from distbench.store.schema import CLIENTS, SERVER

NS = 1_000_000_000


def _server(readings: list[tuple[int, str, str, dict[str, str], float]]) -> pa.Table:
    names = ("time_ns", "target", "name", "labels", "value")
    rows = [
        dict(zip(names, (s * NS, t, n, list(labels.items()), v), strict=True))
        for s, t, n, labels, v in readings
    ]
    return pa.Table.from_pylist(rows, SERVER)


def _sample(second: int, client: int, **values: Any) -> dict[str, Any]:
    zero = {f.name: 0 for f in CLIENTS if not f.nullable}
    return {**zero, "time_ns": second * NS, "interval_s": 1.0, "client": client, **values}


def test_rates_are_sums_over_clients_per_second() -> None:
    """Two clients with 10 and 20 requests in the same second are 30 requests/s."""
    rows = [
        _sample(5, 0, requests_done=10, output_tokens=100),
        _sample(5, 1, requests_done=20, output_tokens=50),
    ]

    found = make_timeline(pa.Table.from_pylist(rows, CLIENTS), SERVER.empty_table())

    assert [v for v in found["request_rate"] if v is not None] == [30.0]
    assert [v for v in found["output_token_rate"] if v is not None] == [150.0]


def test_long_run_has_few_steps_and_keeps_its_sum() -> None:
    """Two hours come down to at most 601 steps, and the requests stay as many."""
    rows = [_sample(s, 0, requests_done=3) for s in range(1, 7201)]

    found = make_timeline(pa.Table.from_pylist(rows, CLIENTS), SERVER.empty_table())

    assert len(found.seconds) <= MAX_BINS + 1
    assert sum(v * found.bin_s for v in found["request_rate"] if v is not None) == pytest.approx(
        21_600, rel=1e-4
    )


def test_pause_is_a_gap_and_no_zero() -> None:
    """Where nothing was sampled the series is None."""
    rows = [_sample(2, 0, requests_done=1), _sample(6, 0, requests_done=1)]

    found = make_timeline(pa.Table.from_pylist(rows, CLIENTS), SERVER.empty_table())

    assert found["request_rate"] == [1.0, None, None, None, 1.0, None]


def test_engines_and_targets_are_added_and_cache_use_is_averaged() -> None:
    """Running of two engines and two targets is the sum, KV use the mean; tensor-parallel ranks count once."""
    run, kv = "vllm:num_requests_running", "vllm:kv_cache_usage_perc"
    readings: list[tuple[int, str, str, dict[str, str], float]] = [
        (3, "a", run, {"engine": "0"}, 4.0),
        (3, "a", run, {"engine": "1"}, 6.0),
        (3, "b", run, {"engine": "0"}, 5.0),
        (3, "a", kv, {"engine": "0"}, 0.2),
        (3, "a", kv, {"engine": "1"}, 0.4),
        (3, "b", kv, {"engine": "0"}, 0.9),
        (3, "c", "sglang:num_running_reqs", {"tp_rank": "0"}, 7.0),
        (3, "c", "sglang:num_running_reqs", {"tp_rank": "1"}, 7.0),
    ]

    found = make_timeline(CLIENTS.empty_table(), _server(readings))

    assert [v for v in found["running"] if v is not None] == [22.0]
    assert [v for v in found["kv_usage"] if v is not None] == [0.5]


def test_hit_ratio_comes_from_growth_and_restart_counts_nothing() -> None:
    """Hits over queries of each step; a counter that falls back to zero adds nothing."""
    queries, hits = "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"
    values = [(1, 100.0, 50.0), (2, 200.0, 125.0), (3, 0.0, 0.0), (4, 10.0, 1.0)]
    readings: list[tuple[int, str, str, dict[str, str], float]] = [
        (s, "a", name, {}, v) for s, q, h in values for name, v in ((queries, q), (hits, h))
    ]

    found = make_timeline(CLIENTS.empty_table(), _server(readings))

    assert [v for v in found["prefix_hit_ratio"] if v is not None] == [0.75, 0.1]


def test_nothing_read_is_an_empty_timeline() -> None:
    """Without samples and scrapes there is no axis and no series."""
    found = make_timeline(CLIENTS.empty_table(), SERVER.empty_table())

    assert (found.seconds, found["running"], found.has("running")) == ([], [], False)


def test_client_health_counts_windows_only() -> None:
    """Samples of the ramp and the drain are left out; the busiest client stands first."""
    rows = [
        _sample(1, 0, connections=4, in_flight_mean=0.0, loop_cpu_ratio=0.9),
        _sample(5, 0, connections=4, in_flight_mean=4.0, loop_cpu_ratio=0.2),
        _sample(5, 1, connections=4, in_flight_mean=3.0, loop_cpu_ratio=0.5),
    ]
    levels = [{"level": 0, "window_start_ns": 3 * NS, "window_end_ns": 9 * NS}]

    found = client_health(pa.Table.from_pylist(rows, CLIENTS), levels)

    assert [(c["client"], c["cpu_max"], c["in_flight_ratio"]) for c in found] == [
        (1, 0.5, 0.75),
        (0, 0.2, 1.0),
    ]
    assert found[0]["lag_p99_s"] is None
