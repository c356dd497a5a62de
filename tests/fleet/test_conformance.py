"""What every fleet must do, with Ray and without."""

import collections
import itertools
import time
from collections.abc import Iterator

import pytest

from distbench.clock import SAME_CLOCK
from distbench.core.shards import level_share
from distbench.fleet.base import Fleet, LevelRun
from distbench.fleet.local import LocalFleet
from tests.client.load_server import LoadServer, closed_port, stream
from tests.client.plans import TinyWorkload, level, wait_until
from tests.fleet.drive import FleetResult, drive, fleet_setup


@pytest.fixture(scope="module", params=["local", pytest.param("ray", marks=pytest.mark.ray)])
def fleet(request: pytest.FixtureRequest) -> Iterator[Fleet]:
    """Give a started fleet of two clients."""
    made: Fleet
    if request.param == "local":
        made = LocalFleet(2)
    else:
        from distbench.fleet.ray_fleet import RayFleet

        made = RayFleet(2, request.getfixturevalue("ray_runtime"))
    hosts = made.start()
    assert [host.client for host in hosts] == [0, 1]
    yield made
    made.close()


def test_rows_of_all_clients_are_complete_unique_and_even(fleet: Fleet) -> None:
    """Totals are totals: 30 requests and 6 of warm-up over 6 connections, three of each client."""
    with LoadServer(stream(2, 0.01)) as server:
        fleet.setup(fleet_setup(server.url))
        result = drive(fleet, level(connections=6, requests=30, warmup=6))
        seen = [seen.request_id for seen in server.truth.seen]
    assert collections.Counter(row["phase"] for row in result.rows) == {"measured": 30, "warmup": 6}
    assert {row["outcome"] for row in result.rows} == {"ok"}
    assert sorted(row["request_id"] for row in result.rows) == sorted(seen)
    assert len(set(seen)) == 36
    assert collections.Counter(row["client"] for row in result.rows) == {0: 18, 1: 18}
    assert {row["connection"] for row in result.rows} == set(range(6))
    assert {finished.reason for finished in result.finished.values()} == {"complete"}
    assert result.lost == {}


def test_in_flight_at_the_server_is_what_was_asked(fleet: Fleet) -> None:
    """No connection idles while there is work."""
    with LoadServer(stream(1, 0.3)) as server:
        fleet.setup(fleet_setup(server.url))
        drive(fleet, level(connections=40, requests=80))
    assert server.truth.max_in_flight == 40


def test_both_targets_get_their_part(fleet: Fleet) -> None:
    """Connections are spread over targets as over clients."""
    with LoadServer(stream(1, 0.02)) as first, LoadServer(stream(1, 0.02)) as second:
        probes = fleet.setup(fleet_setup(first.url, second.url))
        assert [(probe.client, probe.target, probe.error) for probe in probes] == [
            (0, first.url, None), (0, second.url, None), (1, first.url, None), (1, second.url, None),
        ]  # fmt: skip
        drive(fleet, level(connections=4, requests=24))
        assert len({seen.peer for seen in first.truth.seen}) == 2
        assert len({seen.peer for seen in second.truth.seen}) == 2


def test_a_probe_that_fails_says_why(fleet: Fleet) -> None:
    """Every client tries by itself."""
    with closed_port() as port:
        probes = fleet.setup(fleet_setup(f"http://127.0.0.1:{port}/v1"))
    assert [probe.client for probe in probes] == [0, 1]
    assert all("cannot connect" in (probe.error or "") for probe in probes)


def test_stop_in_the_middle_keeps_everything(fleet: Fleet) -> None:
    """All planned requests have rows: what ran is cut, the rest dropped."""
    with LoadServer(stream(2000, 0.02)) as server:
        fleet.setup(fleet_setup(server.url))

        def stop(run: LevelRun, result: FleetResult) -> None:
            if server.truth.in_flight == 4:
                run.stop()

        began_s = time.monotonic()
        result = drive(fleet, level(connections=4, requests=20), during=stop)
        assert time.monotonic() - began_s < 20
        wait_until(lambda: server.truth.in_flight == 0)
    assert collections.Counter(row["outcome"] for row in result.rows) == {"cut": 4, "dropped": 16}
    assert {finished.reason for finished in result.finished.values()} == {"stopped"}


def test_a_deadline_ends_all_clients(fleet: Fleet) -> None:
    """Each cuts by its own clock."""
    with LoadServer(stream(2000, 0.02)) as server:
        fleet.setup(fleet_setup(server.url))
        result = drive(fleet, level(connections=4, requests=None, duration_s=0.5))
    assert [row["outcome"] for row in result.rows] == ["cut"] * 4
    assert {finished.reason for finished in result.finished.values()} == {"deadline"}


def test_a_level_after_a_level(fleet: Fleet) -> None:
    """Ids differ; nothing of the first is in the second."""
    with LoadServer(stream(1)) as server:
        fleet.setup(fleet_setup(server.url))
        first = drive(fleet, level(level=1, connections=3, requests=9))
        second = drive(fleet, level(level=2, connections=2, requests=4))
    assert {row["level"] for row in first.rows} == {1}
    assert {row["level"] for row in second.rows} == {2}
    assert (len(first.rows), len(second.rows)) == (9, 4)


def test_fewer_connections_than_clients(fleet: Fleet) -> None:
    """A client without a connection says its last word all the same."""
    with LoadServer(stream(1)) as server:
        fleet.setup(fleet_setup(server.url))
        result = drive(fleet, level(connections=1, requests=3))
    assert len(result.rows) == 3
    assert sorted(result.finished) == [0, 1]


def test_clocks_of_one_machine_are_one_clock(fleet: Fleet) -> None:
    """No offset is estimated where none can be."""
    assert list(fleet.measure_clocks()) == [SAME_CLOCK, SAME_CLOCK]
    assert list(fleet.alive()) == [True, True]
    assert fleet.num_clients == 2


def test_all_clients_start_together_and_stamps_share_the_epoch(fleet: Fleet) -> None:
    """First sends of both clients lie close together, after the ordered start."""
    with LoadServer(stream(2, 0.01)) as server:
        setup = fleet_setup(server.url)
        fleet.setup(setup)
        result = drive(fleet, level(connections=2, requests=8))
    start_ns = result.run.start_ns - setup.epoch_monotonic_ns
    firsts = [min(row["sent_ns"] for row in result.rows if row["client"] == client) for client in range(2)]
    assert all(start_ns <= first < start_ns + 500_000_000 for first in firsts)


def test_an_open_loop_is_dealt_over_the_clients(fleet: Fleet) -> None:
    """Together they keep the one schedule."""
    with LoadServer(stream(1)) as server:
        fleet.setup(fleet_setup(server.url))
        spec = level(connections=8, requests=20, warmup=4, pattern="constant", rate_rps=50.0)
        result = drive(fleet, spec)
    rows = sorted(result.rows, key=lambda row: row["scheduled_ns"])
    assert [row["client"] for row in rows] == [0, 1] * 12
    gaps_ms = {round((b["scheduled_ns"] - a["scheduled_ns"]) / 1e6) for a, b in itertools.pairwise(rows)}
    assert gaps_ms == {20}


def test_the_share_of_a_client_can_be_told_from_its_position(fleet: Fleet) -> None:
    """What a lost client still owed follows from the same rule."""
    spec = level(connections=3, requests=10)
    with LoadServer(stream(1)) as server:
        fleet.setup(fleet_setup(server.url))
        result = drive(fleet, spec)
    for position, client in enumerate(result.run.clients):
        share = level_share(spec, position=position, num_clients=len(result.run.clients), num_targets=1)
        got = sorted(row["index"] for row in result.rows if row["client"] == client)
        assert got == list(share.measured)


def test_counters_and_samples_come_while_a_level_runs(fleet: Fleet) -> None:
    """Twice and once per second, the last ones complete."""
    with LoadServer(stream(10, 0.02)) as server:
        fleet.setup(fleet_setup(server.url, workload=TinyWorkload(max_tokens=10)))
        result = drive(fleet, level(connections=4, requests=16))
    last = {progress.client: progress for progress in result.progress}
    assert sum(progress.ok for progress in last.values()) == 16
    assert sum(progress.output_tokens for progress in last.values()) == 160
    assert {sample["client"] for sample in result.health} == {0, 1}
    assert any(progress.in_flight == 2 for progress in result.progress)
