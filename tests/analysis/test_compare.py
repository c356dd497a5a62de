"""Comparison of runs: intervals that hold what they promise, and gates that trip when they should."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from distbench.analysis.compare import Side, compare, headline_points, welch_interval
from distbench.analysis.compare_bootstrap import BOOTSTRAP_COLUMNS, level_deviations
from distbench.analysis.compare_gate import Outcome, judge_gates
from distbench.analysis.compare_metrics import parse_gates
from distbench.analysis.compare_plan import Aspect, plan_differences
from distbench.core.plan import Slo
from distbench.store.schema import LATENCIES, LEVELS, REQUESTS

NS = 1_000_000_000
_NONE: dict[str, Any] = dict.fromkeys(LEVELS.names)


def _row(level: int, connections: int, rate: float | None, **more: Any) -> dict[str, Any]:
    counts = {f"{name}_n": 0 for name in LATENCIES}
    base = {
        "level": level,
        "repeat": 0,
        "connections": connections,
        "pattern": "burst",
        "users_per_request": 1,
    }
    figures = {
        "output_token_rate": rate,
        "requests_ok": 0 if rate is None else 100,
        "valid": rate is not None,
    }
    return {**_NONE, **counts, **base, **figures, **more}


def _side(rows: list[dict[str, Any]], **more: Any) -> Side:
    settings: Mapping[str, Any] = {
        "name": "run",
        "findings": {},
        "plan": {"user-tokens": 128},
        "server": {},
        "requests": lambda level: REQUESTS.empty_table().select(BOOTSTRAP_COLUMNS),
        **more,
    }
    return Side(rows=rows, **settings)


def _repeated(rates: tuple[float, ...], connections: int = 8) -> list[dict[str, Any]]:
    return [_row(i, connections, rate, repeat=i) for i, rate in enumerate(rates)]


def test_welch_interval_equals_hand_calculation() -> None:
    """Logs 0, 0.1 against 0.2, 0.3: error 0.0707, 2 degrees, t 4.303, so the ratio times exp(-+0.3042)."""
    old, new = (1.0, math.exp(0.1)), (math.exp(0.2), math.exp(0.3))

    low, high = welch_interval(old, new)

    ratio = math.exp(0.2)
    assert low == pytest.approx(ratio * math.exp(-0.30424) - 1, abs=1e-4)
    assert high == pytest.approx(ratio * math.exp(0.30424) - 1, abs=1e-4)


def test_equal_readings_keep_an_interval() -> None:
    """Three readings that agree to the digit do not make a difference of a tenth of a percent significant."""
    change = (
        compare(_side(_repeated((100.0,) * 3)), _side(_repeated((100.1,) * 3)))
        .points[0]
        .changes["throughput"]
    )

    assert change.significant is False
    assert change.method == "repeats"


def test_clear_drop_over_repeats_is_worse() -> None:
    """Ten percent less, with one percent of scatter, is significant; the ratio is of the means."""
    before, after = _side(_repeated((99.0, 100.0, 101.0))), _side(_repeated((89.0, 90.0, 91.0)))

    change = compare(before, after).points[0].changes["throughput"]

    assert change.ratio == pytest.approx(-0.1)
    assert change.judgement == "worse"
    assert change.low is not None
    assert change.low < -0.1


def test_invalid_levels_do_not_count() -> None:
    """A level that is not valid is left out of the mean."""
    rows = [*_repeated((100.0, 100.0)), _row(5, 8, 1.0, valid=False)]

    change = compare(_side(rows), _side(_repeated((100.0, 100.0)))).points[0].changes["throughput"]

    assert change.baseline == 100.0


def test_one_short_reading_has_no_interval() -> None:
    """Without repeats and without requests to draw from nothing is called significant."""
    change = compare(_side([_row(0, 8, 100.0)]), _side([_row(0, 8, 50.0)])).points[0].changes["throughput"]

    assert (change.ratio, change.low, change.judgement) == (-0.5, None, "unknown")


def test_peaks_are_compared_without_the_reading_that_chose_them() -> None:
    """At the peak the first visit, which was chosen for being high, is left out where repeats are there."""
    before = [_row(0, 4, 50.0), *[_row(i + 1, 8, r, repeat=i) for i, r in enumerate((120.0, 100.0, 100.0))]]
    after = [_row(0, 4, 50.0), *[_row(i + 1, 16, r, repeat=i) for i, r in enumerate((130.0, 100.0, 100.0))]]
    sides = (
        _side(before, findings={"peak": {"connections": 8}}),
        _side(after, findings={"peak": {"connections": 16}, "lower_bound": True}),
    )

    point = compare(*sides).points[0]

    assert point.label == "peak (8 connections against 16)"
    assert (point.changes["throughput"].baseline, point.changes["throughput"].ratio) == (100.0, 0.0)
    assert point.notes == ("run did not reach its ceiling: its peak is a lower bound.",)


def test_other_connections_are_no_common_setting() -> None:
    """Levels with other connections are not compared, and that is said."""
    found = compare(_side([_row(0, 8, 1.0)]), _side([_row(0, 16, 1.0)]))

    assert found.points == ()
    assert "no setting in common" in found.notes[0]


def test_longer_answers_are_told() -> None:
    """Where the answers that came differ in length, the point says so, whatever the plans say."""
    before, after = (_row(0, 8, 1.0, completion_tokens_mean=n) for n in (128.0, 100.0))

    notes = compare(_side([before]), _side([after])).points[0].notes

    assert notes == ("The answers differ in length: 128.0 against 100.0 tokens on average.",)


def _level(rng: np.random.Generator, tpot_s: float, count: int = 2000, connections: int = 20) -> pa.Table:
    """Return requests of one closed-loop level: 16 tokens each at tpot_s with 10 % of scatter, 50 ms to the first."""
    tpot = tpot_s * np.exp(rng.normal(0, 0.1, count))
    ttft = 0.05 * np.exp(rng.normal(0, 0.1, count))
    per = count // connections
    span = (ttft + 15 * tpot).reshape(connections, per)
    sent_s = (np.cumsum(span, axis=1) - span).ravel()
    first_s = sent_s + ttft
    columns: dict[str, Any] = {
        "phase": ["measured"] * count,
        "outcome": ["ok"] * count,
        "sent_ns": (sent_s * NS).astype(np.int64),
        "first_token_ns": (first_s * NS).astype(np.int64),
        "last_token_ns": ((first_s + 15 * tpot) * NS).astype(np.int64),
        "completion_tokens": np.full(count, 16),
        "prompt_tokens": np.full(count, 100),
        "user_messages": np.ones(count, np.int64),
    }
    fields = [REQUESTS.field(name) for name in BOOTSTRAP_COLUMNS]
    arrays = [
        pa.array(columns[f.name]).cast(f.type) if f.name in columns else pa.nulls(count, f.type)
        for f in fields
    ]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def test_bootstrap_spread_equals_the_standard_error() -> None:
    """The spread of the median TPOT of 2,000 values with 10 % scatter is 1.2533 x 0.1 / sqrt(2000) = 0.28 %, within a third."""
    window = (0, 19 * NS)
    spreads = [
        level_deviations(_level(np.random.default_rng(seed), 0.01), window, seed)["tpot_p50_s"].std()
        for seed in range(4)
    ]

    assert float(np.mean(spreads)) == pytest.approx(0.0028, rel=0.34)


def test_bootstrap_draws_are_the_same_each_time() -> None:
    """Equal rows and seeds give equal draws: a report does not change when it is made again."""
    rows = _level(np.random.default_rng(1), 0.01, 400)
    first, second = (level_deviations(rows, (0, 4 * NS), 3) for _ in range(2))

    assert (
        set(first)
        == set(second)
        >= {"request_rate", "output_token_rate", "ttft_p99_s", "tpot_p50_s", "e2e_p90_s"}
    )
    assert all((first[name] == second[name]).all() for name in first)


def test_goodput_has_an_interval_of_its_own() -> None:
    """Half of about 1,900 requests meet a TPOT of 10 ms: by the binomial the share is off by sqrt(0.5 / (0.5 * 1900)) = 2.3 %."""
    slos = (Slo(metric="tpot", limit_s=0.01),)
    spreads = []
    for seed in range(4):
        found = level_deviations(_level(np.random.default_rng(seed), 0.01), (0, 19 * NS), seed, slos)
        spreads.append(found["goodput_rate"].std())
    assert float(np.mean(spreads)) == pytest.approx(0.023, rel=0.34)
    rows = _level(np.random.default_rng(1), 0.01)
    assert "goodput_rate" not in level_deviations(rows, (0, 19 * NS), 1)
    assert "goodput_rate" not in level_deviations(rows, (0, 19 * NS), 1, (Slo(metric="icl", limit_s=0.01),))


def test_bootstrap_needs_four_blocks() -> None:
    """A window of three requests' length tells nothing of chance."""
    rows = _level(np.random.default_rng(1), 0.01, 60)

    assert level_deviations(rows, (0, int(0.6 * NS)), 0) == {}
    assert level_deviations(rows, (None, None), 0) == {}


def _measured(seed: int, tpot_s: float) -> Side:
    table = _level(np.random.default_rng(seed), tpot_s)
    seconds = np.asarray(table["last_token_ns"].to_numpy()) / NS
    end_s = float(np.sort(seconds)[-20])
    rate = 16 * float((seconds < end_s).sum()) / end_s
    tpot = np.asarray(table["last_token_ns"].to_numpy() - table["first_token_ns"].to_numpy()) / 15 / NS
    row = _row(
        0, 20, rate, window_start_ns=0, window_end_ns=int(end_s * NS), tpot_p50_s=float(np.median(tpot))
    )
    return _side([row], requests=lambda level: table)


@pytest.mark.slow
def test_equal_servers_are_rarely_called_different() -> None:
    """Of 20 comparisons of equal servers at most 3 call the throughput different (5 % are expected)."""
    wrong = 0
    for seed in range(20):
        change = compare(_measured(seed, 0.01), _measured(1000 + seed, 0.01)).points[0].changes["throughput"]
        assert change.method == "time"
        wrong += bool(change.significant)

    assert wrong <= 3


def test_slower_server_is_found_from_one_reading_each() -> None:
    """Eight percent more per token is found without repeats, in latency and in throughput."""
    changes = compare(_measured(1, 0.0100), _measured(2, 0.0108)).points[0].changes

    assert changes["tpot_p50"].judgement == "worse"
    assert changes["throughput"].judgement == "worse"


def test_gate_needs_bound_and_significance() -> None:
    """A gate trips only where the change is beyond the bound and its interval leaves out zero."""
    baseline = _side(_repeated((100.0, 101.0, 99.0)))
    cases = {
        (96.0, 95.9, 96.1): Outcome.PASSED,
        (90.0, 91.0, 89.0): Outcome.REGRESSION,
        (70.0, 90.0, 110.0): Outcome.NOT_SIGNIFICANT,
        (120.0, 121.0, 119.0): Outcome.PASSED,
    }
    gates = parse_gates(["throughput:-5%"])

    found = {
        rates: judge_gates(compare(baseline, _side(_repeated(rates))), gates)[0].outcome for rates in cases
    }

    assert found == cases


def test_gate_on_a_time_is_absolute() -> None:
    """A bound in ms is held against the difference, not against the ratio."""
    before, after = (
        [{**row, "ttft_p99_s": seconds} for row in _repeated((100.0, 101.0))] for seconds in (0.100, 0.104)
    )
    gates = parse_gates(["ttft_p99:+3ms", "ttft_p99:+5ms"])

    outcomes = [result.outcome for result in judge_gates(compare(_side(before), _side(after)), gates)]

    assert outcomes == [Outcome.REGRESSION, Outcome.PASSED]


def test_gate_does_not_pass_where_nothing_can_be_told() -> None:
    """No common level, no figure, no interval: not judged, never passed."""
    gates = parse_gates(["throughput:-5%"])
    one = _side([_row(0, 8, 100.0)])
    pairs = [
        (one, _side([_row(0, 16, 100.0)])),
        (_side([_row(0, 8, None)]), one),
        (one, _side([_row(0, 8, 100.0)])),
    ]

    outcomes = [judge_gates(compare(*pair), gates)[0].outcome for pair in pairs]

    assert outcomes == [Outcome.NOT_JUDGED] * 3


def test_all_failed_is_a_regression() -> None:
    """Where the baseline has a figure and every request of the candidate failed, the gate is missed."""
    found = compare(_side([_row(0, 8, 100.0)]), _side([_row(0, 8, None)]))

    assert judge_gates(found, parse_gates(["throughput:-5%"]))[0].outcome is Outcome.REGRESSION


def test_latency_gate_of_a_search_is_judged_at_or_below_the_peak() -> None:
    """Two searches compare latencies at the most connections both measured, not above the baseline's peak."""

    def rows(peak: int) -> Side:
        levels = [_row(i, n, 10.0 * n, ttft_p99_s=0.1) for i, n in enumerate((4, 8, 16, 32))]
        return _side(levels, findings={"peak": {"connections": peak}})

    found = compare(rows(16), rows(32))

    result = judge_gates(found, parse_gates(["ttft_p99:+10%"]))
    assert [r.place for r in result] == ["16 connections"]
    assert [p.label for p in headline_points(found)] == ["peak (16 connections against 32)", "16 connections"]


def test_workload_differences_come_first() -> None:
    """Differences are sorted: what was asked, then the server, the amount, the client."""
    found = plan_differences(
        {"user-tokens": 128, "urls": ["a"], "requests": 100, "clients": 1},
        {"user-tokens": 256, "urls": ["b"], "requests": 200, "clients": 2},
        {"server version": "0.10"},
        {"server version": "0.11"},
    )

    assert [(d.aspect, d.key) for d in found] == [
        (Aspect.WORKLOAD, "user-tokens"),
        (Aspect.SERVER, "urls"),
        (Aspect.SERVER, "server version"),
        (Aspect.AMOUNT, "requests"),
        (Aspect.CLIENT, "clients"),
    ]


def test_only_a_different_workload_makes_a_different_workload() -> None:
    """More clients or another output folder leave the workload the same; another prompt length does not."""
    rows = _repeated((1.0, 1.0))

    same = compare(
        _side(rows, plan={"clients": 1, "output": "a"}), _side(rows, plan={"clients": 2, "output": "b"})
    )
    other = compare(_side(rows, plan={"user-tokens": 1}), _side(rows, plan={"user-tokens": 2}))

    assert (same.same_workload, other.same_workload) == (True, False)
