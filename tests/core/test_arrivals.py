"""Tests of distbench.core.arrivals; the schedule cases in virtual time."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distbench.core.arrivals import client_offsets_ns, num_measured, offsets_ns
from distbench.core.levels import LevelSpec
from distbench.core.plan import PromptPlan
from distbench.core.shards import level_share
from distbench.core.synthetic import SyntheticWorkload
from distbench.errors import PlanError
from distbench.units import NS_PER_S


def level(**changes: Any) -> LevelSpec:
    """Return a level of 10 requests at a constant 10 per second, with changes."""
    values: dict[str, Any] = {
        "level": 0,
        "connections": 100,
        "requests": 10,
        "warmup": 0,
        "pattern": "constant",
        "rate_rps": 10.0,
    }
    return LevelSpec(**{**values, **changes})


def serve(due_s: Iterable[float], service_s: Iterable[float], cap: int) -> tuple[list[float], list[float]]:
    """
    Play a pool of cap connections that serve requests in order, none before it is due, in virtual time.

    Returns:
        (sent, ended), seconds.
    """
    free = [0.0] * cap
    sent, ended = [], []
    for due, service in zip(due_s, service_s, strict=True):
        start = max(due, heapq.heappop(free))
        heapq.heappush(free, start + service)
        sent.append(start)
        ended.append(start + service)
    return sent, ended


def test_constant_rate_has_no_drift_over_a_million_requests() -> None:
    """Slot k is k/rate rounded on its own: at 3 per second the millionth is at 333,333.333333333 s."""
    offsets = offsets_ns(level(rate_rps=3.0, requests=1_000_001), seed=0)
    assert offsets[:4].tolist() == [0, 333_333_333, 666_666_667, 1_000_000_000]
    assert offsets[1_000_000] == 333_333_333_333_333
    assert offsets.dtype == np.int64


def test_latency_counts_from_the_schedule_under_a_cap() -> None:
    """C58: due at 0, 0.1, 0.2, 0.3 s, cap 1, service 0.5 s: queue 0, 0.4, 0.8, 1.2; from the schedule 0.5, 0.9, 1.3, 1.7."""
    due_s = offsets_ns(level(requests=4), seed=0) / NS_PER_S
    sent, ended = serve(due_s, [0.5] * 4, cap=1)
    assert [round(s - d, 9) for s, d in zip(sent, due_s, strict=True)] == [0.0, 0.4, 0.8, 1.2]
    assert [round(e - d, 9) for e, d in zip(ended, due_s, strict=True)] == [0.5, 0.9, 1.3, 1.7]


def test_absolute_times_keep_the_rate_whatever_a_send_costs() -> None:
    """C59: 200/s, 10,000 requests, 0.45 ms of work each: absolute times keep 200/s; sleeping in between gives 183.5."""
    due_s = offsets_ns(level(rate_rps=200.0, requests=10_000), seed=0) / NS_PER_S
    sent, _ = serve(due_s, [0.000_45] * 10_000, cap=1)
    assert 9_999 / (sent[-1] - sent[0]) == pytest.approx(200, rel=1e-6)
    assert round(1 / (1 / 200 + 0.000_45), 1) == 183.5


def test_a_stall_is_seen_in_the_send_times() -> None:
    """C61: 10/s, cap 4, server frozen for 2 s: 4 are sent, the rest leave in one burst above the rate when slots free."""
    due_s = offsets_ns(level(requests=40), seed=0) / NS_PER_S
    service_s = [2.0, 1.9, 1.8, 1.7] + [0.01] * 36
    sent, _ = serve(due_s, service_s, cap=4)
    per_second = np.bincount(np.floor(np.asarray(sent) + 1e-9).astype(int), minlength=4)
    assert per_second.tolist() == [4, 0, 26, 10]


def test_a_pool_is_not_a_wave() -> None:
    """C69: two connections, durations 5, 1, 1, 1 s, all at once: over after 5 s, not 6."""
    _, ended = serve([0.0] * 4, [5.0, 1.0, 1.0, 1.0], cap=2)
    assert max(ended) == 5.0


def test_paced_batches_start_together() -> None:
    """Batches of 3 every 0.5 s; the last one is short."""
    spec = level(pattern="paced", rate_rps=None, batch_size=3, batch_interval_s=0.5, requests=7)
    assert (offsets_ns(spec, seed=0) / NS_PER_S).tolist() == [0, 0, 0, 0.5, 0.5, 0.5, 1.0]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"requests": None, "duration_s": 1.0}, 10),
        ({"requests": None, "duration_s": 1.05}, 11),
        ({"requests": 5, "duration_s": 1.0}, 5),
        ({"requests": 50, "duration_s": 1.0}, 10),
        ({"requests": None, "duration_s": 1.0, "warmup": 3}, 13),
        ({"requests": 4, "warmup": 3}, 7),
        (
            {
                "requests": None,
                "duration_s": 1.0,
                "pattern": "paced",
                "rate_rps": None,
                "batch_size": 4,
                "batch_interval_s": 0.5,
            },
            8,
        ),
    ],
)
def test_requests_or_duration_ends_a_level(changes: dict[str, Any], expected: int) -> None:
    """The first to end; a slot at the end of the duration is not sent; the duration counts from the first measured slot."""
    assert len(offsets_ns(level(**changes), seed=0)) == expected


@pytest.mark.parametrize("changes", [{"pattern": "poisson"}, {"pattern": "gamma", "burstiness": 0.25}])
def test_random_arrivals_keep_rate_and_variance(changes: dict[str, Any]) -> None:
    """Gaps have the mean 1/rate and the variance of their distribution: 1/rate^2, over the shape for gamma."""
    spec = level(rate_rps=50.0, requests=100_000, **changes)
    gaps = np.diff(offsets_ns(spec, seed=1) / NS_PER_S)
    assert gaps.min() >= 0
    assert gaps.mean() == pytest.approx(0.02, rel=0.03)
    assert gaps.var() == pytest.approx(0.0004 / spec.burstiness, rel=0.1)


def test_poisson_counts_vary_as_poisson() -> None:
    """Over 200 levels of 100 expected arrivals, the counts have mean and variance 100: nothing is rescaled to hit the rate."""
    counts = [
        len(offsets_ns(level(level=n, pattern="poisson", requests=None, duration_s=10.0), seed=5)) - 1
        for n in range(200)
    ]
    assert np.mean(counts) == pytest.approx(100, abs=3.5)
    assert np.var(counts) == pytest.approx(100, rel=0.5)


def test_a_shorter_random_level_is_the_beginning_of_a_longer_one() -> None:
    """More requests, or more time, add times at the end only."""
    long = offsets_ns(level(pattern="poisson", requests=20_000), seed=3)
    short = offsets_ns(level(pattern="poisson", requests=9_000), seed=3)
    timed = offsets_ns(level(pattern="poisson", requests=None, duration_s=1_200.0), seed=3)
    assert np.array_equal(short, long[:9_000])
    assert np.array_equal(timed, long[: len(timed)])
    assert timed[-1] < timed[0] + 1_200 * NS_PER_S <= long[len(timed)]


def test_levels_and_seeds_draw_their_own_times() -> None:
    """Equal seeds and levels give equal times, others do not."""
    spec = level(pattern="poisson")
    first = offsets_ns(spec, seed=1).tolist()
    assert first == offsets_ns(spec, seed=1).tolist()
    assert first != offsets_ns(spec, seed=2).tolist()
    assert first != offsets_ns(level(pattern="poisson", level=1), seed=1).tolist()


def test_a_trace_prescribes_its_times() -> None:
    """As recorded, cut by the number of requests or by the duration."""
    trace = np.array([0, 5, 10, 2 * NS_PER_S], dtype=np.int64)
    spec = level(pattern="trace", rate_rps=None, requests=None)
    assert offsets_ns(spec, seed=0, trace_ns=trace).tolist() == trace.tolist()
    timed = level(pattern="trace", rate_rps=None, requests=None, duration_s=1.0)
    assert offsets_ns(timed, seed=0, trace_ns=trace).tolist() == [0, 5, 10]
    few = level(pattern="trace", rate_rps=None, requests=1, warmup=1)
    assert offsets_ns(few, seed=0, trace_ns=trace).tolist() == [0, 5]


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"pattern": "burst", "rate_rps": None}, "rate"),
        ({"pattern": "burst"}, "no schedule"),
        ({"pattern": "trace"}, "timestamps"),
        ({"pattern": "constant", "rate_rps": 0.0}, "rate"),
        ({"pattern": "paced"}, "batch-size"),
        ({"requests": None}, "duration"),
    ],
)
def test_what_a_pattern_lacks_is_named(changes: dict[str, Any], word: str) -> None:
    """A level that cannot be scheduled is a PlanError, not an endless or empty schedule."""
    with pytest.raises(PlanError, match=word):
        offsets_ns(level(**changes), seed=0)


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(["constant", "poisson", "gamma", "paced"]),
    st.integers(1, 7),
    st.integers(1, 60),
    st.integers(0, 9),
    st.integers(1, 9),
    st.one_of(st.none(), st.floats(0.1, 3.0)),
)
def test_the_clients_shares_are_the_whole_schedule(
    pattern: str, clients: int, requests: int, warmup: int, connections: int, duration_s: float | None
) -> None:
    """Together the clients send at exactly the level's times, each its own slots in turn, whatever their number."""
    paced = {"rate_rps": None, "batch_size": 4, "batch_interval_s": 0.3} if pattern == "paced" else {}
    spec = level(
        pattern=pattern,
        requests=requests,
        warmup=warmup,
        connections=connections,
        duration_s=duration_s,
        **paced,
    )
    workload = SyntheticWorkload(PromptPlan(seed=4))
    whole = offsets_ns(spec, seed=4)
    found: dict[int, int] = {}
    for position in range(clients):
        share = level_share(spec, position=position, num_clients=clients, num_targets=1)
        times = client_offsets_ns(spec, workload, position=position, num_clients=clients).tolist()
        slots = [*share.warmup, *(warmup + index for index in share.measured)][: len(times)]
        assert len(times) == len(slots) == len(set(slots))
        assert times == sorted(times)
        found.update(zip(slots, times, strict=True))
    assert [found[slot] for slot in range(len(whole))] == whole.tolist()
    assert num_measured(spec, whole) == max(0, len(whole) - warmup)


def test_the_clients_of_an_open_ended_level_share_it_evenly() -> None:
    """A level of 1 s at 10/s on 4 clients: 3, 3, 2, 2 slots, interleaved."""
    spec = level(requests=None, duration_s=1.0)
    workload = SyntheticWorkload(PromptPlan())
    shares = [
        (client_offsets_ns(spec, workload, position=p, num_clients=4) / 1e8).round().astype(int).tolist()
        for p in range(4)
    ]
    assert shares == [[0, 4, 8], [1, 5, 9], [2, 6], [3, 7]]
