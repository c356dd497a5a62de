"""What only the fleet on Ray must do: placement, lost clients, silence, secrets."""

import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from distbench.errors import FleetError, PlacementError
from distbench.fleet.placement import PlacementRules
from distbench.fleet.ray_fleet import RayFleet
from distbench.fleet.ray_runtime import RayRuntime, _check_answers, head_address
from tests.client.load_server import LoadServer, stream
from tests.client.plans import TinyWorkload, level, wait_until
from tests.fleet.drive import FleetResult, drive, fleet_setup
from tests.fleet.ray_nodes import Nodes, session_folder_text

pytestmark = pytest.mark.ray


@contextmanager
def started(num_clients: int, runtime: RayRuntime, **options: Any) -> Iterator[RayFleet]:
    """Give a started fleet."""
    fleet = RayFleet(num_clients, runtime, **options)
    try:
        fleet.start()
        yield fleet
    finally:
        fleet.close()


def test_clients_lie_evenly_on_the_nodes(ray_runtime: RayRuntime) -> None:
    """Two nodes, two clients: one on each; every process is its own."""
    fleet = RayFleet(2, ray_runtime)
    try:
        hosts = fleet.start()
    finally:
        fleet.close()
    assert len({host.node_id for host in hosts}) == 2
    assert len({host.pid for host in hosts} | {os.getpid()}) == 3
    assert {host.ray for host in hosts} == {__import__("ray").__version__}


@pytest.mark.parametrize("rules", [PlacementRules(resource="client_host"), PlacementRules(label="zone=b")])
def test_clients_go_only_where_the_rules_let_them(ray_runtime: RayRuntime, rules: PlacementRules) -> None:
    """A resource or a label names the client hosts."""
    fleet = RayFleet(2, ray_runtime, rules=rules)
    try:
        hosts = fleet.start()
    finally:
        fleet.close()
    assert len({host.node_id for host in hosts}) == 1


def test_more_clients_than_cpus_stops_at_once_with_both_numbers(ray_runtime: RayRuntime) -> None:
    """Nothing hangs."""
    began_s = time.monotonic()
    with pytest.raises(PlacementError, match=r"64 clients asked, [1-4] can be placed"):
        RayFleet(64, ray_runtime).start()
    assert time.monotonic() - began_s < 15


def test_allow_fewer_takes_the_places_there_are(ray_runtime: RayRuntime) -> None:
    """The number held is the fleet's number."""
    with started(5, ray_runtime, rules=PlacementRules(per_node=1, allow_fewer=True)) as fleet:
        assert fleet.num_clients == 2


def test_a_killed_client_costs_its_last_batch_and_nothing_else(ray_runtime: RayRuntime) -> None:
    """The other goes on to its end; what was sent before is kept; the next level is divided over the living."""
    fleet = RayFleet(2, ray_runtime)
    try:
        hosts = fleet.start()
        with LoadServer(stream(1, 0.05)) as server:
            fleet.setup(fleet_setup(server.url))
            killed_s: list[float] = []

            def kill(run: object, result: FleetResult) -> None:
                if not killed_s and {row["client"] for row in result.rows} == {0, 1}:
                    os.kill(hosts[1].pid, signal.SIGKILL)
                    killed_s.append(time.monotonic())
                if result.lost and len(killed_s) == 1:
                    killed_s.append(time.monotonic())

            result = drive(fleet, level(connections=4, requests=240), during=kill)
            assert killed_s[1] - killed_s[0] < 10
            assert sorted(result.finished) == [0]
            assert sorted(result.lost) == [1]
            assert "died" in result.lost[1].reason
            assert sum(row["client"] == 0 for row in result.rows) == 120
            kept = sum(row["client"] == 1 for row in result.rows)
            assert 0 < kept < 120
            assert list(fleet.alive()) == [True, False]
            after = drive(fleet, level(level=4, connections=4, requests=8))
        assert {row["client"] for row in after.rows} == {0}
        assert sorted(row["index"] for row in after.rows) == list(range(8))
    finally:
        fleet.close()


def test_a_host_that_joins_during_a_level_takes_part_in_the_next_run(
    ray_runtime: RayRuntime, ray_cluster: Nodes
) -> None:
    """The level under way goes on as it was divided; the next fleet finds the new host's places."""
    leave: list[Callable[[], None]] = []
    try:
        with LoadServer(stream(1, 0.05)) as server, started(1, ray_runtime) as fleet:
            fleet.setup(fleet_setup(server.url))

            def join(run: object, result: FleetResult) -> None:
                if not leave and result.rows:
                    leave.append(ray_cluster.join(num_cpus=2, resources={"late_host": 1}))

            result = drive(fleet, level(connections=4, requests=240), during=join)
        assert leave
        assert sorted(row["index"] for row in result.rows) == list(range(240))
        assert {row["client"] for row in result.rows} == {0}
        with started(2, ray_runtime, rules=PlacementRules(resource="late_host")) as fleet:
            assert fleet.num_clients == 2
    finally:
        for go in leave:
            go()


def test_a_frozen_client_is_lost_and_its_load_ends(ray_runtime: RayRuntime) -> None:
    """Silence beyond the limit; the process is killed, so that it cannot go on later."""
    fleet = RayFleet(2, ray_runtime, client_silence_limit_s=3.0)
    try:
        hosts = fleet.start()
        with LoadServer(stream(1, 0.05)) as server:
            fleet.setup(fleet_setup(server.url))
            frozen: list[int] = []

            def freeze(run: object, result: FleetResult) -> None:
                if not frozen and server.truth.in_flight:
                    frozen.append(hosts[0].pid)
                    os.kill(hosts[0].pid, signal.SIGSTOP)

            result = drive(fleet, level(connections=4, requests=200), during=freeze)
            assert sorted(result.lost) == [0]
            assert "nothing heard for 3 s" in result.lost[0].reason
            assert sorted(result.finished) == [1]
            wait_until(lambda: not _runs(hosts[0].pid))
    finally:
        fleet.close()


def test_a_client_cut_off_from_its_driver_stops_its_load(ray_runtime: RayRuntime) -> None:
    """No more pings: the level ends by itself, with everything reported."""
    cut: list[float] = []
    with (
        started(1, ray_runtime, ping_interval_s=0.2, silence_limit_s=1.0) as fleet,
        LoadServer(stream(5000, 0.02)) as server,
    ):
        fleet.setup(fleet_setup(server.url))

        def cut_off(run: object, result: FleetResult) -> None:
            if not cut and server.truth.in_flight == 2:
                assert fleet._pinger is not None
                fleet._pinger.close()
                cut.append(time.monotonic())

        result = drive(fleet, level(connections=2, requests=4), during=cut_off)
        assert time.monotonic() - cut[0] < 10
        wait_until(lambda: server.truth.in_flight == 0)
    assert result.finished[0].reason == "driver_silent"
    assert sorted(row["outcome"] for row in result.rows) == ["cut", "cut", "dropped", "dropped"]


def test_an_offset_of_another_clock_is_estimated(ray_runtime: RayRuntime) -> None:
    """The true offset between processes of one machine is zero, within the bound and a margin for a busy machine."""
    with started(1, ray_runtime) as fleet:
        offset = fleet._measure_clock(0)
    assert offset.round_trips >= 200
    assert offset.error_ns > 0
    assert abs(offset.offset_ns) <= offset.error_ns + 2_000_000


def test_stamps_of_another_clock_are_told_on_the_drivers(ray_runtime: RayRuntime) -> None:
    """A client whose clock is taken to be an hour ahead starts an hour later on it, hence never in this test; it can be stopped."""
    hour_ns = 3600 * 10**9
    with started(1, ray_runtime) as fleet, LoadServer() as server:
        fleet.setup(fleet_setup(server.url))
        measured = fleet._offsets[0]
        fleet._offsets[0] = type(measured)(offset_ns=hour_ns, error_ns=1, round_trips=200)

        def stop(run: Any, result: FleetResult) -> None:
            if result.progress:
                run.stop()

        result = drive(fleet, level(), during=stop)
        assert server.truth.seen == []
        # The client says "now" relative to an epoch that it believes an hour later.
        assert all(progress.at_ns < -hour_ns // 2 for progress in result.progress)


def test_secrets_are_not_in_rays_files(ray_runtime: RayRuntime, ray_cluster: Nodes) -> None:
    """Neither a key in a header nor a prompt's text is written by Ray; a large workload travels through shared memory only."""
    secret = "sk-9c1f-never-on-disk"
    workload = TinyWorkload(text="prompt-5d2e-never-on-disk " * 10_000)
    with started(1, ray_runtime) as fleet, LoadServer(stream(1)) as server:
        setup = fleet_setup(server.url, workload=workload, headers=(("Authorization", f"Bearer {secret}"),))
        fleet.setup(setup)
        drive(fleet, level(requests=2))
        assert server.truth.seen[0].headers["authorization"] == f"Bearer {secret}"
        command_lines = [" ".join(process.cmdline()) for process in psutil.Process().children(recursive=True)]
        tables = _head_tables()
    written = session_folder_text(ray_cluster.folder)
    assert len(written) > 10_000
    assert secret.encode() not in written
    assert b"prompt-5d2e-never-on-disk" not in written
    assert not any(secret in line for line in command_lines)
    assert "LoadClientActor" in tables
    assert secret not in tables
    assert secret not in repr(setup)


def test_what_crosses_survives_pickle() -> None:
    """Down: targets, settings, orders. Up: events."""
    setup = fleet_setup("http://h:1/v1")
    assert pickle.loads(pickle.dumps(setup)) == setup
    assert pickle.loads(pickle.dumps(level())) == level()


def test_back_pressure_holds_a_client_that_nobody_listens_to(ray_runtime: RayRuntime) -> None:
    """Ray's option has a private-looking name: a generator stops a few items ahead of its listener."""
    import ray

    class Counter:
        def __init__(self) -> None:
            self.made = 0

        async def items(self) -> Any:
            for _ in range(50):
                self.made += 1
                yield self.made

        async def count(self) -> int:
            return self.made

    wrapped: Any = ray.remote(Counter)
    actor = wrapped.remote()
    items = actor.items.options(num_returns="streaming", _generator_backpressure_num_objects=4).remote()
    first = ray.get(next(items), timeout=30)
    time.sleep(0.5)
    made = ray.get(actor.count.remote(), timeout=30)
    assert first == 1
    assert made < 10
    ray.kill(actor)


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("ray://h:10001", "ray job submit"),
        ("somewhere", "must be auto or host:port"),
        ("auto", "no Ray cluster runs on this machine"),
    ],
)
def test_addresses_that_cannot_work_are_refused_in_one_sentence(
    address: str, text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Before anything is tried."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    with pytest.raises(FleetError, match=text):
        head_address(address)


def test_auto_finds_the_cluster_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Ray leaves the head's address in its folder."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("10.0.0.1:6379")
    assert head_address("auto") == "10.0.0.1:6379"


def test_a_head_that_does_not_answer_is_told_within_seconds() -> None:
    """No minute of waiting."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        began_s = time.monotonic()
        with pytest.raises(FleetError, match=r"no Ray cluster answers at 127\.0\.0\.1"):
            _check_answers(f"127.0.0.1:{holder.getsockname()[1]}")
    assert time.monotonic() - began_s < 6


def test_a_process_that_already_uses_ray_is_refused(ray_runtime: RayRuntime) -> None:
    """Two runs would share actors and shutdown."""
    with pytest.raises(FleetError, match="already uses Ray"):
        RayRuntime().start()


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _head_tables() -> str:
    """Return what the head knows of jobs, actors and nodes, as text."""
    from ray._private.state import state

    tables: Any = state
    return repr([tables.job_table(), tables.actor_table(None, None, None), tables.node_table()])


_JOIN_AS_ANOTHER_RAY = """
import sys
import ray
ray.__version__ = "2.59.0"
from distbench.errors import FleetError
from distbench.fleet.ray_runtime import RayRuntime
try:
    RayRuntime(sys.argv[1]).start()
except FleetError as error:
    print(error)
"""


def test_another_ray_is_refused_with_both_versions(ray_cluster: Nodes) -> None:
    """A driver whose Ray says it is 2.59.0 meets a cluster of another version: one sentence with both, and no traceback."""
    done = subprocess.run(
        [sys.executable, "-c", _JOIN_AS_ANOTHER_RAY, ray_cluster.address],
        env={**os.environ, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    told = done.stdout.strip()
    assert "\n" not in told
    assert f"cannot join the Ray cluster at {ray_cluster.address}: Version mismatch" in told
    assert f"Ray: {__import__('ray').__version__} " in told
    assert "Ray: 2.59.0 " in told
    assert "Traceback" not in done.stderr
