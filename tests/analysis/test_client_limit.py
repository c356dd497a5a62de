"""The client_limited rule: three symptoms, one thing that beats them, and what is only a caveat."""

from typing import Any

import pyarrow as pa
import pytest

from distbench.analysis.client_limit import ClientHealth, client_health, verify_client
from distbench.store.schema import CLIENTS

S = 1_000_000_000
HEALTHY: dict[str, Any] = {
    "level": 0,
    "client": 0,
    "time_ns": 10 * S,
    "interval_s": 1.0,
    "connections": 100,
    "connected": 100,
    "in_flight": 100,
    "in_flight_mean": 99.5,
    "loop_cpu_ratio": 0.4,
    "lag_p99_s": 0.001,
    "turnaround_p99_s": 0.0004,
    "turnaround_sum_s": 0.05,
    "turnarounds": 100,
    "requests_sent": 100,
    "requests_done": 100,
    "output_tokens": 1000,
    "reads": 1000,
    "bytes_received": 100000,
    "waiting_parse": 0,
}


def judge(*changes: dict[str, Any], connections: int = 100, **options: Any) -> ClientHealth:
    """Judge one sample per change of the healthy one."""
    rows = pa.Table.from_pylist([HEALTHY | change for change in changes], schema=CLIENTS)
    options = {"window_ns": None, "clients": 1} | options
    return client_health(rows, connections=connections, **options)


def test_healthy_client_is_proven_innocent() -> None:
    """0.05 s of 100 connection-seconds idle, 40 % CPU, 99.5 of 100 in flight: not the limit, with the numbers."""
    health = judge({})
    assert health.limited is False
    assert health.is_proven
    assert health.turnaround_ratio == pytest.approx(0.0005)
    assert health.evidence == (
        "connections idled 0.05% of their time",
        "the busiest client's loop used 40% of its CPU",
        "99.5 of 100 asked requests were in flight",
    )


@pytest.mark.parametrize(
    ("change", "limited", "word"),
    [
        ({"turnaround_sum_s": 3.1}, True, "idled 3.1%"),
        ({"turnaround_sum_s": 2.9}, False, ""),
        ({"loop_cpu_ratio": 0.90}, True, "90% of its CPU"),
        ({"loop_cpu_ratio": 0.89}, False, ""),
        ({"in_flight_mean": 96.9}, True, "96.9 requests in flight of 100"),
        ({"in_flight_mean": 97.0}, False, ""),
        ({"lag_p99_s": 0.5}, False, ""),
    ],
    ids=["idle", "idle ok", "cpu", "cpu ok", "in flight", "in flight ok", "lag"],
)
def test_each_symptom_has_its_threshold(change: dict[str, Any], limited: bool, word: str) -> None:
    """Idle over 3 %, CPU from 90 %, in flight under 97 %; lag alone is a caveat and no limit."""
    health = judge(change)
    assert health.limited is limited
    if limited:
        assert word in health.evidence[0]


def test_a_level_that_a_fault_touched_accuses_nobody() -> None:
    """Half a request in flight of a hundred, since the server had died: neither the limit nor proven innocent; the figures stay."""
    health = judge(
        {"in_flight_mean": 0.5, "turnaround_sum_s": 90.0}, disturbed="it was ended early (target gone)"
    )
    assert (health.limited, health.is_proven, health.in_flight_mean) == (None, False, 0.5)
    assert health.evidence == ("it was ended early (target gone): its samples say nothing of the client",)


def test_lag_is_a_caveat() -> None:
    """Half a second between stamp and read is told beside the verdict."""
    assert "500 ms" in judge({"lag_p99_s": 0.5}).caveats[0]
    assert judge({}).caveats == ()


@pytest.mark.parametrize(("waiting_ratio", "limited"), [(0.8, False), (0.79, True), (None, True)])
def test_queue_at_the_server_beats_the_symptoms(waiting_ratio: float | None, limited: bool) -> None:
    """A server with requests waiting in 80 % of the scrapes is full, whatever the client's state; the symptom stays visible."""
    health = judge({"loop_cpu_ratio": 0.99, "turnaround_sum_s": 9.0}, waiting_ratio=waiting_ratio)
    assert health.limited is limited
    assert len(health.evidence if limited else health.caveats) == 2


def test_one_bad_client_of_many_is_seen() -> None:
    """The CPU rule looks at the busiest client, not at the mean."""
    health = judge(
        {"client": 0, "connections": 50, "in_flight_mean": 50.0},
        {"client": 1, "connections": 50, "in_flight_mean": 50.0, "loop_cpu_ratio": 0.97},
        clients=2,
    )
    assert health.limited is True
    assert health.cpu_max == 0.97


def test_samples_outside_the_window_do_not_count() -> None:
    """Ramp-up, where connections are still opened, is no deficit."""
    health = judge({"time_ns": S, "in_flight_mean": 5.0}, {"time_ns": 10 * S}, window_ns=(5 * S, 20 * S))
    assert health.in_flight_mean == 99.5


def test_figures_of_the_request_rows_are_preferred() -> None:
    """The rows know the window to the nanosecond; the samples only to their second."""
    health = judge(
        {"turnaround_sum_s": 9.0, "in_flight_mean": 5.0}, turnaround_ratio=0.01, in_flight_mean=99.0
    )
    assert health.limited is False
    assert (health.turnaround_ratio, health.in_flight_ratio) == (0.01, 0.99)


def test_without_samples_nothing_is_proven() -> None:
    """No samples, or none from one of the clients: neither limited nor innocent."""
    assert judge().limited is None
    partly = judge({}, clients=2)
    assert partly.limited is None
    assert "1 of 2" in partly.evidence[0]


def test_open_loop_has_idle_connections_by_plan() -> None:
    """With a schedule, idle connections and few in flight are the plan's doing."""
    health = judge({"turnaround_sum_s": 50.0, "in_flight_mean": 3.0}, closed_loop=False)
    assert health.limited is False
    assert (health.turnaround_ratio, health.in_flight_ratio) == (None, None)


@pytest.mark.parametrize(
    ("doubled", "agrees", "word"),
    [
        ([101.0, 99.0, 100.5], True, "was not the limit"),
        ([130.0, 131.0, 129.0], False, "the client was the limit"),
        ([80.0, 81.0, 79.0], False, "costs throughput"),
    ],
)
def test_verification_compares_with_twice_the_clients(doubled: list[float], agrees: bool, word: str) -> None:
    """Agreement within noise is the proof; more, or less, is the finding."""
    found = verify_client([100.0, 101.0, 99.0], doubled, clients=2)
    assert found.agrees is agrees
    assert word in found.text
    assert "4 clients" in found.text
