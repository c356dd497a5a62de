"""planned = ok + failed + cut + dropped + lost = rows, and what breaks it is said."""

from __future__ import annotations

from distbench.analysis.accounting import account, lost_rows
from distbench.core.levels import LevelSpec
from distbench.core.shards import level_share
from distbench.store.schema import REQUESTS
from tests.analysis.requests_of import request, table


def test_every_outcome_has_its_count() -> None:
    """Seven measured requests, warm-up left aside."""
    outcomes = ["ok", "ok", "failed", "cut", "dropped", "lost", "lost"]
    rows = table(
        [request(0.0, end=1.0, outcome=o) for o in outcomes] + [request(0.0, end=1.0, phase="warmup")]
    )
    counted = account(rows, planned=7)
    assert (counted.ok, counted.failed, counted.cut, counted.dropped, counted.lost) == (2, 1, 1, 1, 2)
    assert counted.rows == counted.planned == 7
    assert counted.balanced
    assert counted.problem is None


def test_missing_and_surplus_rows_are_said() -> None:
    """A request without a row, or more rows than planned, is a fault of ours."""
    rows = table([request(0.0, [1.0])])
    assert account(rows, planned=2).problem == "2 requests were planned but 1 are accounted for"
    assert not account(rows, planned=0).balanced


def test_without_a_number_planned_the_rows_are_the_plan() -> None:
    """Where only the duration ended the level, what was sent was planned."""
    assert account(table([request(0.0, [1.0])] * 3), planned=None).planned == 3


def test_duplicates_are_found() -> None:
    """One id three times: two rows too many, though the sum is right."""
    rows = table([request(0.0, [1.0], request_id=i) for i in (5, 5, 5, 8)])
    counted = account(rows, planned=4)
    assert (counted.duplicates, counted.num_duplicates) == ((5,), 2)
    assert not counted.balanced
    assert counted.problem is not None
    assert "such as request 5" in counted.problem


def test_lost_rows_complete_a_dead_clients_share() -> None:
    """Client 1 of 2 owns requests 5..9 of 10; 5 and 7 arrived, so 6, 8 and 9 are lost, and the level balances."""
    spec = LevelSpec(level=4, connections=2, requests=10, warmup=2, users_per_request=3)
    arrived = [
        request(0.0, [1.0], level=4, index=i, request_id=4 * 10**12 + i) for i in (0, 1, 2, 3, 4, 5, 7)
    ]
    arrived.append(
        request(0.0, [1.0], level=4, index=6, phase="warmup", request_id=4 * 10**12 + 5 * 10**11 + 6)
    )
    rows = table(arrived)
    lost = lost_rows(spec, client=7, position=1, num_clients=2, num_targets=1, received=rows)
    assert lost.schema == REQUESTS
    assert lost["index"].to_pylist() == [6, 8, 9]
    assert lost["request_id"].to_pylist() == [4_000_000_000_006, 4_000_000_000_008, 4_000_000_000_009]
    assert set(lost["client"].to_pylist()) == {7}
    assert set(lost["outcome"].to_pylist()) == {"lost"}
    assert set(lost["user_messages"].to_pylist()) == {3}
    assert lost["sent_ns"].null_count == 3
    everything = table([*rows.to_pylist(), *lost.to_pylist()])
    assert account(everything, planned=10).balanced


def test_nothing_is_lost_where_nothing_was_planned() -> None:
    """A level that only its duration ends planned no further request."""
    spec = LevelSpec(level=0, connections=2, requests=None, warmup=0, duration_s=5.0)
    assert (
        lost_rows(spec, client=0, position=0, num_clients=2, num_targets=1, received=table([])).num_rows == 0
    )


def test_lost_rows_of_an_open_loop_share() -> None:
    """The share of an open-loop client is every n-th slot, and so are its lost rows."""
    spec = LevelSpec(level=0, connections=4, requests=7, warmup=0, pattern="constant", rate_rps=1.0)
    lost = lost_rows(spec, client=1, position=1, num_clients=2, num_targets=1, received=table([]))
    assert lost["index"].to_pylist() == [1, 3, 5]
    assert list(level_share(spec, position=1, num_clients=2, num_targets=1).measured) == [1, 3, 5]
