"""The doctor on clusters and connections: every line in a state in which it is well, and one in which it is not."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, cast

import pytest

from distbench.clock import ClockOffset
from distbench.core.plan_io import build_plan
from distbench.errors import FleetError
from distbench.experiment.doctor.check import Check, Status
from distbench.experiment.doctor.cluster import (
    ClockReading,
    ClusterReading,
    node_names,
    read_cluster,
    wall_ahead_ns,
)
from distbench.experiment.doctor.cluster_checks import check_not_tried, check_unreachable, cluster_checks
from distbench.experiment.doctor.connecting import (
    DRIVER,
    ConnectSample,
    Resolution,
    check_connects,
    check_dns,
    resolve,
)
from distbench.experiment.doctor.examination import join_machines
from distbench.fleet.placement import Node
from tests.experiment.doctor_readings import VERSIONS, cluster, machine

NAMES = ["ray", "versions", "clock offsets", "wall clocks"]


def lines(reading: ClusterReading) -> dict[str, Check]:
    """Return the lines about a cluster by their names."""
    return {check.name: check for check in cluster_checks(reading)}


def clock(error_ns: int = 0, wall_ahead_ns: int | None = 0) -> ClockReading:
    """Return a node's clocks; the offset itself is that of another machine's start and means nothing."""
    offset = ClockOffset(offset_ns=86_400_000_000_000, error_ns=error_ns, round_trips=200)
    return ClockReading(offset=offset, wall_ahead_ns=wall_ahead_ns)


def test_a_good_cluster_passes_every_line() -> None:
    """Four lines, all ok, with the count of nodes and of places."""
    found = lines(cluster())
    assert list(found) == NAMES
    assert {check.status for check in found.values()} == {Status.OK}
    assert found["ray"].text == "2 nodes, room for 7 clients"


@pytest.mark.parametrize(
    ("name", "changes", "status", "text"),
    [
        (
            "ray",
            {"versions": {"h1": VERSIONS, "h2": "no answer in time"}},
            "fail",
            "1 of 2 nodes do not answer: h2",
        ),
        (
            "versions",
            {"versions": {"h1": VERSIONS, "h2": {**VERSIONS, "distbench": "0.0.9"}}},
            "fail",
            "h2 has distbench 0.0.9; here are python 3.11.7, ray 2.60.0, distbench 0.1.0",
        ),
        (
            "versions",
            {"versions": {"h1": VERSIONS, "h2": {"python": "3.11.8", "ray": "2.60.0", "distbench": None}}},
            "fail",
            "h2 has python 3.11.8 and no distbench",
        ),
        (
            "clock offsets",
            {"clocks": {"h1": clock(), "h2": clock(error_ns=2_500_000)}},
            "warn",
            "2.50 ms only, on h2",
        ),
        (
            "wall clocks",
            {"clocks": {"h1": clock(), "h2": clock(wall_ahead_ns=-90_000_000_000)}},
            "warn",
            "90.0 s behind",
        ),
        (
            "clients start",
            {"problem": "no node has a free CPU for a client; add nodes"},
            "fail",
            "no node has a free CPU",
        ),
    ],
    ids=["silent-node", "distbench", "not-installed", "clock-error", "wall-clock", "no-cpu"],
)
def test_one_bad_reading_spoils_its_line(name: str, changes: dict[str, Any], status: str, text: str) -> None:
    """The node is named, what is wrong is said, and something is advised."""
    line = lines(cluster(**changes))[name]
    assert line.status == status
    assert text in line.text
    assert line.advice


def test_a_cluster_that_cannot_be_reached_is_told_with_its_advice() -> None:
    """What stands behind the semicolon of an error is what to do."""
    line = check_unreachable(
        "--ray-address auto: no Ray cluster runs on this machine; start one with ray start"
    )
    assert (line.status, line.advice) == (Status.FAIL, "start one with ray start")


def test_ray_that_is_not_asked_for() -> None:
    """Installed is enough; missing fails, since a run would start it."""
    assert check_not_tried("2.60.0").status is Status.OK
    assert check_not_tried(None).status is Status.FAIL


def test_nodes_of_one_name_are_told_apart() -> None:
    """The address is added where a host name comes twice, the node's id where both do."""

    def node(node_id: str, hostname: str, address: str) -> Node:
        return Node(
            node_id=node_id,
            address=address,
            hostname=hostname,
            cpus=1,
            total_cpus=1,
            gpus=0,
            resources={},
            labels={},
            is_driver=False,
        )

    nodes = [
        node("aaaaaaaa", "h1", "10.0.0.1"),
        node("bbbbbbbb", "h2", "10.0.0.2"),
        node("cccccccc", "h2", "10.0.0.3"),
        node("dddddddd", "h4", "10.0.0.4"),
        node("eeeeeeee", "h4", "10.0.0.4"),
    ]
    assert list(node_names(nodes).values()) == [
        "h1",
        "h2/10.0.0.2",
        "h2/10.0.0.3",
        "h4/10.0.0.4/dddddd",
        "h4/10.0.0.4/eeeeee",
    ]


def test_this_machine_is_counted_once() -> None:
    """As a node it keeps its own limits and what its CPUs did before Ray came; as no node it is added."""
    own = machine(hostname="h1", busy_ratio=0.1, open_files_limit=9_000)
    nodes = {
        "h1": machine(hostname="h1", busy_ratio=0.9, open_files_limit=1_024),
        "h2": machine(hostname="h2"),
    }
    joined = join_machines(own, nodes)
    assert list(joined) == ["h1", "h2"]
    assert (joined["h1"].busy_ratio, joined["h1"].open_files_limit) == (0.1, 1_024)
    assert list(join_machines(machine(hostname="h9"), nodes)) == ["h9", "h1", "h2"]


def test_a_wall_clock_is_compared_by_hand() -> None:
    """
    The driver reads 1,000 where its wall clock says 50,000; the node is 300 ahead of it and reads 1,500 at wall time 51,700.

    1,500 there are 1,200 here, when it was 50,200: the node's wall clock is 1,500 ahead.
    """
    offset = ClockOffset(offset_ns=300, error_ns=1, round_trips=200)
    assert wall_ahead_ns(machine(wall_ns=51_700, monotonic_ns=1_500), offset, 49_000) == 1_500
    assert wall_ahead_ns(None, offset, 49_000) is None


@pytest.mark.parametrize(
    ("found", "status", "text"),
    [
        (Resolution(host="10.0.0.1", duration_s=None, addresses=("10.0.0.1",)), "ok", "is an address"),
        (Resolution(host="h", duration_s=0.004, addresses=("10.0.0.1",)), "ok", "resolved in 4.0 ms"),
        (Resolution(host="h", duration_s=0.5, addresses=("a", "b")), "warn", "to 2 addresses in 500.0 ms"),
        (Resolution(host="h", duration_s=None, error="Name or service not known"), "fail", "name or service"),
        (Resolution(host="h", duration_s=None, proxy="p:3128"), "ok", "proxy p:3128"),
    ],
    ids=["address", "name", "slow", "unknown", "proxy"],
)
def test_the_line_about_dns(found: Resolution, status: str, text: str) -> None:
    """A slow resolver is a warning, a name that is not known a failure."""
    line = check_dns(found)
    assert line.status == status
    assert text in line.text


def test_names_are_asked_for_and_addresses_are_not() -> None:
    """The resolver gets the host and the port of the URL; its error is kept as a sentence; doubles count once."""
    asked = []

    def resolver(host: str, port: int) -> list[Any]:
        asked.append((host, port))
        if host == "gone.example":
            raise OSError(-2, "Name or service not known")
        return [(0, 0, 0, "", ("10.0.0.7", port))] * 3

    assert resolve("http://[::1]:8000/v1", resolver=resolver).addresses == ("::1",)
    assert resolve("https://llm.example/v1", resolver=resolver).addresses == ("10.0.0.7",)
    assert resolve("http://gone.example:8000/v1", resolver=resolver).error == "Name or service not known"
    assert asked == [("llm.example", 443), ("gone.example", 8000)]


def connect_line(times: Mapping[str, float | str]) -> Check:
    """Return the line of one target, from places with their connect times or errors."""
    return check_connects(
        [
            ConnectSample(
                node=node,
                target="http://t",
                connect_s=value if isinstance(value, float) else None,
                error=value if isinstance(value, str) else None,
            )
            for node, value in times.items()
        ]
    )


def test_the_line_about_connecting() -> None:
    """The slowest place counts; one that cannot is a failure, and the advice depends on whether the driver can."""
    assert connect_line({DRIVER: 0.0005}).text == "0.5 ms"
    assert connect_line({DRIVER: 0.001, "h2": 0.002}).text == "2.0 ms, slowest of 2 places (h2)"
    far = connect_line({DRIVER: 0.001, "h2": 0.25})
    assert (far.status, "put the clients near" in str(far.advice)) == (Status.WARN, True)
    refused = connect_line({DRIVER: "cannot connect to t:80: connection refused"})
    assert (refused.status, "is the server running there" in str(refused.advice)) == (Status.FAIL, True)
    cut_off = connect_line({DRIVER: 0.001, "h2": "cannot connect to t:80: no route to host", "h3": 0.001})
    assert cut_off.text.startswith("from h2: cannot connect")
    assert str(cut_off.advice).startswith("2 of 3 places can")


@pytest.mark.ray
def test_no_cluster_at_the_address_is_a_failure_within_seconds() -> None:
    """Nobody listens there: the error comes from the try by TCP, not from Ray's own minute of waiting."""
    plan = build_plan("run", {}, {"urls": ["http://127.0.0.1:1"], "ray-address": "127.0.0.1:1"})
    with pytest.raises(FleetError, match=r"no Ray cluster answers at 127\.0\.0\.1:1"):
        read_cluster(plan, {}, lambda _: None)


_WITHOUT_DISTBENCH = """
import json, sys
sys.modules["distbench"] = None
from ray import cloudpickle
print(json.dumps(cloudpickle.loads(sys.stdin.buffer.read())()))
"""


@pytest.mark.ray
def test_versions_are_told_by_a_node_without_distbench() -> None:
    """The function that asks for them travels whole: a process that cannot import distbench says so."""
    import ray.cloudpickle

    from distbench.fleet.ray_each import _versions_function, own_versions

    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_DISTBENCH],
        input=cast(Any, ray.cloudpickle).dumps(_versions_function()),
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert json.loads(done.stdout) == {**own_versions(), "distbench": None}
