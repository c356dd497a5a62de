"""
The shipped cluster.yaml on machines of their own, from `ray up` over ssh to `ray down`, and what the user meets on the way.

The tests run in this order on one cluster; the last one takes it down.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from distbench.store.reader import open_run
from tests.hosts.cluster import Cluster
from tests.hosts.guide import command
from tests.hosts.machines import Machine, wait_for

pytestmark = pytest.mark.hosts

KEY = "sk-6b1e-only-in-memory"
STOPS_WITHIN_NS = 10 * 10**9
SMALL = "--system-tokens 16 --user-tokens 16 --output-tokens 8"


def test_capacity_from_the_head_over_both_client_hosts(cluster: Cluster) -> None:
    """
    `ray up`, `ray exec`, `ray rsync-down`: the user has a dataset with the rows of both hosts.

    The server saw the addresses of both. The hosts' clocks are 100,000 s and 200,000 s ahead, which the offsets say within their
    bounds (and a margin for a busy machine).
    """
    (cluster.head.home / "server.env").write_text(f"export SERVER_KEY={KEY}\n")
    (cluster.head.home / "server.env").chmod(0o600)
    small = f"--clients 2 --connections 2,8 --repeats 1 --requests 40 {SMALL} --api-key-env SERVER_KEY"
    line = command("distbench capacity").replace("http://SERVER:8000", f"{cluster.url} {small}")
    shown = cluster.type(line.replace("'distbench", "'. ~/server.env; distbench"))
    assert "complete; everything is in /root/runs/first" in shown.stdout
    cluster.type(command("rsync-down"))

    run = open_run(cluster.admin.home / "distbench/runs/first")
    rows = run.requests().to_pandas()
    assert run.info.status == "complete"
    assert run.info.clients_per_host == {"worker1": 1, "worker2": 1}
    assert set(rows.outcome) == {"ok"}
    assert rows.groupby("client").size().to_dict() == {0: len(rows) // 2, 1: len(rows) // 2}
    served = {entry["request_id"]: entry for entry in cluster.served()}
    for client, worker in enumerate(cluster.workers):
        peers = {served[str(i)]["peer"].rpartition(":")[0] for i in rows[rows.client == client].request_id}
        assert peers == {worker.address}
    for offsets in (run.info.clock_offsets_start, run.info.clock_offsets_end):
        for offset, ahead_s in zip(offsets, (100_000, 200_000), strict=True):
            assert offset["round_trips"] >= 200
            assert abs(offset["offset_ns"] - ahead_s * 10**9) <= offset["error_ns"] + 5_000_000
    assert _is_after(rows)


def _is_after(rows: Any) -> bool:
    """Tell whether the stamps of both hosts lie on one axis: levels follow one another, whatever host measured them."""
    spans = rows.groupby("level").agg(first=("sent_ns", "min"), last=("end_ns", "max"))
    ordered = all(spans["last"].iloc[i] < spans["first"].iloc[i + 1] for i in range(len(spans) - 1))
    return bool(ordered) and len(spans) >= 2


def test_the_result_is_looked_at_on_the_head_and_at_home(cluster: Cluster) -> None:
    """`ray submit` runs a script where the run is; at home it becomes a report and one Parquet file, without the cluster."""
    script = 'import distbench\nprint("found:", distbench.load("/root/runs/first").findings["verdict"])\n'
    (cluster.admin.home / "distbench/peak.py").write_text(script)
    assert re.search(r"found: \w+", cluster.type(command("ray submit")).stdout)
    assert "connections" in cluster.type(command("distbench report")).stdout
    cluster.type(command("distbench export"))
    rows = pq.read_table(cluster.admin.home / "distbench/first.parquet", columns=["client", "outcome"])
    assert set(rows.column("client").to_pylist()) == {0, 1}
    assert set(rows.column("outcome").to_pylist()) == {"ok"}


def test_a_server_whose_host_is_unreachable_is_told_in_time(cluster: Cluster) -> None:
    """Its link goes down: before a run the exit code is 4 within the connect limit; in a run the level ends by itself."""
    load = Load(cluster, "gone", "--requests 100000 --connections 4")
    load.wait_until_rows_are_kept()
    cluster.server.set_link("down")
    try:
        assert load.end(60) == 1, load.told()
        assert "takes no connections any more" in load.told()
        before = Load(cluster, "before", "--requests 4 --connections 4 --timeout-connect 3s")
        assert before.end(45) == 4, before.told()
        assert not before.output.exists()
    finally:
        cluster.server.set_link("up")
    rows = open_run(load.output).requests(columns=["outcome"]).column(0).to_pylist()
    assert {"ok", "cut", "dropped"} <= set(rows) <= {"ok", "cut", "dropped", "failed"}


def test_the_key_is_on_no_disk_and_in_no_command_line(cluster: Cluster) -> None:
    """Ray's folders, the run, the logs of all machines: the key is only where the user put it. Ray's token: only in its file."""
    token = (cluster.admin.home / ".ray/auth_token").read_text().strip()
    assert len(token) > 16
    machines = (cluster.admin, cluster.head, *cluster.workers)
    looked = 0
    for machine in machines:
        for path in _files(machine):
            text = path.read_bytes()
            looked += 1
            assert KEY.encode() not in text or path.name == "server.env", path
            assert token.encode() not in text or path.name == "auth_token", path
        assert not any(KEY in line or token in line for _, line in machine.processes())
    assert looked > 100
    for machine in machines:
        assert (machine.home / ".ray/auth_token").stat().st_mode & 0o077 == 0


def _files(machine: Machine) -> Iterator[Path]:
    for folder in ("root", "tmp"):
        for parent, below, names in os.walk(machine.folder / folder):
            # What came with the machine.
            below[:] = [name for name in below if name not in (".site-packages", ".venv", "__pycache__")]
            yield from (path for name in names if (path := Path(parent, name)).is_file())


def test_strangers_without_the_token_may_not_join(cluster: Cluster) -> None:
    """A machine on the same network that lacks the token gets no further than the head's door."""
    env = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "guessed-0123456789abcdef0123456789"}
    joined = cluster.server.run(
        "/root/distbench/.venv/bin/ray", "start", f"--address={cluster.head.address}:6379",
        env=env, limit_s=90, check=False,
    )  # fmt: skip
    assert joined.returncode != 0
    assert "ray::" not in " ".join(line for _, line in cluster.server.processes())


def test_a_machine_with_another_version_is_refused_with_a_table(cluster: Cluster) -> None:
    """One host was left behind at an update: exit code 1 before any load, and the table names it."""
    module = cluster.workers[1].home / "distbench/distbench/__init__.py"
    text = module.read_text()
    before = len(cluster.served())
    try:
        module.write_text(text.replace('__version__ = "', '__version__ = "0.0.9+'))
        load = Load(cluster, "mixed", "--client-resource client_host --requests 20 --connections 2")
        assert load.end(90) == 1, load.told()
    finally:
        module.write_text(text)
    assert re.search(r"worker1 .*\n.*worker2 .* 0\.0\.9\+", load.told())
    assert not load.output.exists()
    # The driver's own probes only.
    assert len(cluster.served()) - before <= 3


def test_a_killed_driver_leaves_no_load_behind(cluster: Cluster) -> None:
    """Kill -9 of the driver: the load of the other hosts ends within 10 s, the run so far can be read."""
    load = Load(cluster, "killed", "--client-resource client_host --requests 100000 --connections 8")
    load.wait_until_rows_are_kept()
    load.signal_driver(signal.SIGKILL)
    killed_ns = time.monotonic_ns()
    load.end(30)
    for worker in cluster.workers:
        _wait_until_quiet(cluster, worker)
        assert max(_arrivals(cluster, worker)) - killed_ns < STOPS_WITHIN_NS
    run = open_run(load.output)
    assert run.info.status == "running"
    assert run.info.clients_per_host == {"worker1": 1, "worker2": 1}
    assert run.requests().num_rows > 0


def test_a_host_whose_raylet_dies_is_told_and_its_rows_are_kept(cluster: Cluster) -> None:
    """Kill -9 of Ray on a client host: told within 30 s, the other client ends its share, the level is invalid, exit code 1."""
    load = Load(cluster, "raylet", "--client-resource client_host --requests 4000 --connections 4")
    load.wait_until_rows_are_kept()
    os.kill(cluster.workers[1].find("raylet/raylet")[0], signal.SIGKILL)
    wait_for("the driver tells it", lambda: "client 1 lost" in load.told(), 30)
    assert load.end(90) == 1, load.told()
    _assert_told_as_lost(load, lost_client=1)
    assert open_run(load.output).info.status == "incomplete"


def test_a_client_cut_off_from_its_driver_stops_its_load_by_itself(cluster: Cluster) -> None:
    """
    Packets between the driver's host and a client's vanish, while the client still reaches the server: its load ends within 10 s.

    The driver tells the loss within 30 s, and ends in order when asked to.
    """
    # Client 0 lives on the head, client 1 on the first worker.
    worker = cluster.workers[0]
    load = Load(cluster, "cut", "--requests 100000 --connections 4")
    load.wait_until_rows_are_kept()
    _lose_packets(worker, cluster.head)
    cut_ns = time.monotonic_ns()
    try:
        _wait_until_quiet(cluster, worker)
        assert max(_arrivals(cluster, worker)) - cut_ns < STOPS_WITHIN_NS
        wait_for("the driver tells it", lambda: "client 1 lost" in load.told(), 30)
        load.signal_driver(signal.SIGINT)
        assert load.end(45) == 130, load.told()
    finally:
        _deliver_packets(worker, cluster.head)
    _assert_told_as_lost(load, lost_client=1)
    assert open_run(load.output).info.status == "interrupted"


def test_lost_machines_come_back(cluster: Cluster) -> None:
    """The head starts Ray anew where it died; the next run has both client hosts again."""
    cluster.type(command("ray status"))


def test_ray_down_leaves_nothing(cluster: Cluster) -> None:
    """The head ends at once, the others when they have missed it for a while; the server is left alone."""
    cluster.type(command("ray down"))
    for machine in (cluster.head, *cluster.workers):
        end_s = time.monotonic() + 60
        while left := _ray_processes(machine):
            assert time.monotonic() < end_s, f"{machine.name}: {[line[:200] for line in left]}"
            time.sleep(1)
    assert cluster.server.find("distbench sim")


class Load:
    """A run started on the head, by hand."""

    def __init__(self, cluster: Cluster, name: str, options: str) -> None:
        self.output = cluster.head.home / "runs" / name
        self._log = cluster.head.folder / "tmp" / f"{name}.log"
        self._cluster = cluster
        line = f"distbench run {cluster.url} --ray-address auto --clients 2 {SMALL} --no-metrics {options} --output ~/runs/{name}"
        with self._log.open("wb") as log:
            self._process = cluster.head.spawn(
                "bash", "--login", "-c", line, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def told(self) -> str:
        """Return what the user was shown so far."""
        return self._log.read_text()

    def wait_until_rows_are_kept(self) -> None:
        """Return when rows of both clients are on the head's disk."""
        folder = self.output / "requests/level-0000"
        wait_for(
            f"rows of both clients in {folder} ({self.told()})",
            lambda: (
                {name.name[:11] for name in folder.glob("client-*.parquet")} == {"client-0000", "client-0001"}
                or self._process.poll() is not None
            ),
            60,
        )
        assert self._process.poll() is None, self.told()

    def signal_driver(self, number: signal.Signals) -> None:
        """Signal the driver."""
        for pid in self._cluster.head.find("bin/distbench run"):
            os.kill(pid, number)

    def end(self, limit_s: float) -> int:
        """Wait for the end; return the exit code."""
        code: int = self._process.wait(limit_s)
        return code


def _assert_told_as_lost(load: Load, lost_client: int) -> None:
    """Every planned request has a row; what the lost client had sent before is kept; the level does not count."""
    run = open_run(load.output)
    rows = run.requests(columns=["phase", "index", "client", "outcome"]).to_pandas()
    rows = rows[rows.phase == "measured"]
    assert sorted(rows["index"]) == list(range(run.info.totals.planned))
    of_lost = rows[rows.client == lost_client].outcome.value_counts().to_dict()
    assert of_lost["ok"] > 0
    assert of_lost["lost"] > 0
    assert set(rows[rows.client != lost_client].outcome) <= {"ok", "cut", "dropped"}
    assert run.levels().column("valid").to_pylist() == [False]


def _arrivals(cluster: Cluster, machine: Machine) -> list[int]:
    """Return when the server read the requests of a machine, on this machine's monotonic clock."""
    return [e["arrival_ns"] for e in cluster.served() if e["peer"].rpartition(":")[0] == machine.address]


def _wait_until_quiet(cluster: Cluster, machine: Machine) -> None:
    """Return when the server has read nothing from a machine for 4 s."""
    wait_for(
        f"no more load from {machine.name}",
        lambda: time.monotonic_ns() - max(_arrivals(cluster, machine)) > 4 * 10**9,
        30,
    )


def _lose_packets(one: Machine, other: Machine) -> None:
    """Let packets between two machines vanish, as a broken switch does: they go to an address that nobody has."""
    for here, there in ((one, other), (other, one)):
        here.run("ip", "neigh", "replace", there.address, "lladdr", "02:00:00:00:00:99", "nud", "permanent", "dev", "eth0")  # fmt: skip


def _deliver_packets(one: Machine, other: Machine) -> None:
    for here, there in ((one, other), (other, one)):
        here.run("ip", "neigh", "del", there.address, "dev", "eth0")


def _ray_processes(machine: Machine) -> list[str]:
    return [line for _, line in machine.processes() if "ray" in line and "sshd" not in line]
