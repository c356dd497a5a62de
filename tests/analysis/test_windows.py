"""The measuring window by hand: where it opens and closes, what makes it invalid, how full it was."""

from __future__ import annotations

from typing import Any

import pytest

from distbench.analysis.windows import Window, in_flight, measure_window, turnarounds
from distbench.core.levels import LevelSpec
from tests.analysis.requests_of import request, steady, table


def spec(connections: int, requests: int | None, **changes: Any) -> LevelSpec:
    """Return a level without warm-up."""
    return LevelSpec(level=0, connections=connections, requests=requests, warmup=0, **changes)


def window_of(level: LevelSpec, rows: list[dict[str, Any]]) -> Window:
    """Return the window, which must be there."""
    window = measure_window(level, table(rows))
    assert window is not None
    return window


def seconds(window: Window) -> tuple[float, float]:
    """Return start and end in seconds."""
    return window.start_ns / 1e9, window.end_ns / 1e9


def test_window_opens_when_all_were_served_and_closes_when_the_pool_is_empty() -> None:
    """2 connections, 6 requests of 2 s each, the second connection 1 s late: opens at 3 s, closes as the last is taken at 11 s."""
    rows = steady(connections=2, per_connection=6, service_s=2.0, stagger_s=1.0)
    window = window_of(spec(2, 12), rows)
    # Connection 0 ends its first at 2 s, connection 1 at 3 s. Last requests are taken at 10 s and 11 s: one pool.
    assert seconds(window) == (3.0, 11.0)
    assert (window.level_start_ns, window.level_end_ns) == (0, 13_000_000_000)
    # Ends in (3, 11]: connection 0 at 4, 6, 8, 10; connection 1 at 5, 7, 9, 11.
    assert window.num_ended == 8
    assert window.opened
    assert window.valid


def test_warm_up_requests_do_not_open_it() -> None:
    """A warm-up request that ended first counts for nothing."""
    warm = steady(connections=1, per_connection=2, service_s=1.0, phase="warmup")
    rows = warm + steady(connections=1, per_connection=8, service_s=1.0, start=2.0)
    assert seconds(window_of(spec(1, 8), rows)) == (3.0, 9.0)


def test_first_empty_pool_closes_it_and_an_early_client_is_uneven() -> None:
    """Two clients of one connection: the first ends its work at 6 s of 20 s. What it cut off is (19 - 6) / 19 of the level."""
    early = steady(connections=1, per_connection=7, service_s=1.0)
    late = [
        row | {"client": 1, "connection": 1}
        for row in steady(connections=1, per_connection=20, service_s=1.0)
    ]
    window = window_of(spec(2, 27), early + late)
    assert seconds(window) == (1.0, 6.0)
    assert window.client_ends_ns == {0: 6_000_000_000, 1: 19_000_000_000}
    assert window.uneven_ratio == pytest.approx(13 / 19)
    assert window.is_uneven


def test_equal_clients_are_even() -> None:
    """Clients that end together cut nothing off; a single client cannot be uneven."""
    rows = steady(connections=1, per_connection=8, service_s=1.0)
    both = rows + [row | {"client": 1, "connection": 1} for row in rows]
    assert window_of(spec(2, 16), both).uneven_ratio == 0.0
    assert window_of(spec(1, 8), rows).uneven_ratio is None


def test_ramp_and_tail_of_one_request_each() -> None:
    """4 requests at once, three of 10 s and one of 30 s: no window by the rule; [0, 10] is where all were busy, and not valid."""
    ends = [10.0, 10.0, 10.0, 30.0]
    rows = [request(0.0, [end / 100 * k for k in range(1, 101)], connection=i) for i, end in enumerate(ends)]
    window = window_of(spec(4, 4), rows)
    assert seconds(window) == (0.0, 10.0)
    assert not window.opened
    assert not window.valid
    assert window.whole_s == 30.0
    assert in_flight(table(rows), window).mean == pytest.approx(4.0)
    assert in_flight(table(rows), window).minimum == 4


@pytest.mark.parametrize(
    ("service_s", "per_connection", "reason"),
    [
        (0.5, 8, "the window is 3.0 s long, less than 5 s"),
        (4.0, 4, "4 requests ended in the window, fewer than 3 for each of 2 connections"),
    ],
    ids=["short", "few"],
)
def test_short_and_thin_windows_are_not_valid(service_s: float, per_connection: int, reason: str) -> None:
    """Less than 5 s, or less than 3 requests a connection, is said and never a peak."""
    rows = steady(connections=2, per_connection=per_connection, service_s=service_s)
    window = window_of(spec(2, 2 * per_connection), rows)
    assert window.opened
    assert not window.valid
    assert window.reasons == (reason,)


def test_a_deadline_closes_it() -> None:
    """A level of 10 s: what is in flight is cut at 10 s, and the window ends there, not at the last request taken."""
    done = steady(connections=1, per_connection=9, service_s=1.1)
    cut = request(9.9, end=10.0, outcome="cut")
    window = window_of(spec(1, None, duration_s=10.0), [*done, cut])
    assert seconds(window) == (1.1, 10.0)


def test_a_deadline_with_nothing_in_flight_closes_it_too() -> None:
    """Every answer had ended, requests were left over: the window goes on to the last answer before the deadline."""
    rows = steady(connections=1, per_connection=9, service_s=1.1)
    rows.append(request(None, outcome="dropped", connection=-1))
    assert seconds(window_of(spec(1, 10, duration_s=10.0), rows)) == pytest.approx((1.1, 9.9))


def test_requests_that_end_before_the_deadline_close_it_by_the_pool() -> None:
    """With both limits the first to end counts: here the requests."""
    rows = steady(connections=1, per_connection=9, service_s=1.0)
    assert seconds(window_of(spec(1, 9, duration_s=100.0), rows)) == (1.0, 8.0)


def test_a_lost_client_closes_it_where_its_load_stopped() -> None:
    """The window ends with the last that is known of the dead client; the level is not valid, however long it was."""
    alive = steady(connections=1, per_connection=20, service_s=1.0)
    dead = [
        row | {"client": 1, "connection": 1} for row in steady(connections=1, per_connection=9, service_s=1.0)
    ]
    lost = [request(None, outcome="lost", connection=-1, client=1) for _ in range(11)]
    window = window_of(spec(2, 40), alive + dead + lost)
    assert seconds(window) == (1.0, 8.0)
    assert window.reasons == ("11 requests were lost with their client",)


def test_open_loop_opens_with_the_first_generation_and_closes_with_the_schedule() -> None:
    """2 requests a second of 1.2 s each: sent before the first answer at 1.2 s were those of 0, .5 and 1 s; all ended at 2.2 s."""
    rows = [request(0.5 * i, [0.5 * i + 1.2], scheduled=0.5 * i, connection=i % 3) for i in range(40)]
    window = window_of(spec(100, 40, pattern="constant", rate_rps=2.0), rows)
    assert seconds(window) == (2.2, 19.5)
    assert window.valid
    # 1.2 s of every 0.5 s: 2.4 requests are there on average.
    assert in_flight(table(rows), window).mean == pytest.approx(2.4, abs=0.05)


def test_open_loop_deadline_and_dropped_slots() -> None:
    """Slots beyond the deadline were never sent; the window ends at the deadline."""
    rows = [request(0.5 * i, [0.5 * i + 0.2], scheduled=0.5 * i) for i in range(20)]
    rows += [request(None, outcome="dropped", scheduled=0.5 * i, connection=-1) for i in range(20, 30)]
    window = window_of(spec(4, 30, pattern="constant", rate_rps=2.0, duration_s=9.7), rows)
    assert seconds(window) == pytest.approx((0.2, 9.7))


def test_nothing_sent_is_no_window() -> None:
    """All dropped, or all failed at one instant: there is none."""
    assert measure_window(spec(1, 1), table([request(None, outcome="dropped")])) is None
    assert measure_window(spec(1, 1), table([])) is None
    refused = [request(None, end=1.0, outcome="failed", error_kind="connect") for _ in range(3)]
    assert measure_window(spec(1, 3), table(refused)) is None


def test_failed_requests_end_and_open_it_like_others() -> None:
    """A connection whose requests all fail was served, badly; it does not keep the window shut."""
    good = steady(connections=1, per_connection=10, service_s=1.0)
    bad = [request(float(i), end=i + 1.0, outcome="failed", connection=1) for i in range(10)]
    assert seconds(window_of(spec(2, 20), good + bad)) == (1.0, 9.0)


def test_pool_keeps_two_in_flight_until_the_last() -> None:
    """Two connections, durations 5, 1, 1, 1 s: a pool ends at 5 s with two in flight up to 3 s; waves would take 6 s."""
    rows = [
        request(0.0, end=5.0, connection=0),
        *[request(float(i), end=i + 1.0, connection=1) for i in range(3)],
    ]
    window = window_of(spec(2, 4), rows)
    assert window.whole_s == 5.0
    assert seconds(window) == (0.0, 3.0)  # connection 1 had nothing left at 3 s
    held = in_flight(table(rows), window)
    assert (held.mean, held.minimum, held.maximum) == pytest.approx((2.0, 2, 2))


def test_in_flight_counts_the_last_attempt_only() -> None:
    """One request all the time, another from 4 s on, whose first attempt was at 1 s: mean (10 + 6) / 10."""
    rows = table([request(0.0, end=10.0), request(4.0, end=20.0, first_sent_ns=10**9, connection=1)])
    window = Window(
        start_ns=0,
        end_ns=10**10,
        level_start_ns=0,
        level_end_ns=2 * 10**10,
        opened=True,
        num_ended=0,
        client_ends_ns={},
        uneven_ratio=None,
        reasons=(),
    )
    held = in_flight(rows, window)
    assert (held.mean, held.minimum, held.maximum) == pytest.approx((1.6, 1, 2))


def test_turnaround_is_idle_time_without_connecting() -> None:
    """
    One connection, answers of 0.9 s, the next sent 0.1 s later: idle 10 % of the time; where 0.04 s of that was connecting, 6 %.
    """
    rows = [request(float(i), end=i + 0.9, connection=0) for i in range(10)]
    window = window_of(spec(1, 10), rows)
    assert seconds(window) == (0.9, 9.0)
    turns = turnarounds(table(rows), window, 1)
    assert turns.seconds.tolist() == pytest.approx([0.1] * 9)
    assert turns.ratio == pytest.approx(0.9 / 8.1)
    connecting = table([row | {"connect_ns": 40_000_000} for row in rows])
    assert turnarounds(connecting, window, 1).ratio == pytest.approx(0.54 / 8.1)
