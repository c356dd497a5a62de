"""
A look at the nodes of a Ray cluster (floor F4): versions, machines, clocks, and the way from each of them to the targets.

Ray is started or joined, asked and left again. What was found is plain values; cluster_checks.py judges them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from distbench.client.messages import HostInfo, RequestSettings
from distbench.clock import ClockOffset
from distbench.core.plan import Plan
from distbench.core.synthetic import SyntheticWorkload
from distbench.errors import DistbenchError, FleetError
from distbench.experiment.doctor.connecting import ConnectSample
from distbench.experiment.doctor.machine import MachineReading, read_machine
from distbench.fleet.base import Fleet, FleetSetup
from distbench.fleet.placement import Node, PlacementRules, client_nodes, plan_clients
from distbench.wire.base import WireTarget

if TYPE_CHECKING:
    from distbench.fleet.ray_runtime import RayRuntime

_VERSIONS_LIMIT_S = 45.0
_MACHINES_LIMIT_S = 30.0
_NO_LIMIT = 2**31


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ClockReading:
    """
    The clocks of a node against the driver's.

    Attributes:
        offset: Of the monotonic clocks, which a run measures and takes into account.
        wall_ahead_ns: How far the node's wall clock is ahead; None: not known.
    """

    offset: ClockOffset
    wall_ahead_ns: int | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ClusterReading:
    """
    What was found on the nodes; mappings are by the node's name, and hold no node that did not answer.

    Attributes:
        nodes: Names of all live nodes, the driver's included.
        places: Clients that fit on them now, one CPU left to the driver.
        own_versions: Of this process, by "ray", "python" and "distbench".
        versions: Of each node; None: not installed there. A text where the node did not answer.
        machines: Readings.
        clocks: Of the nodes that may hold clients.
        connects: A try of every target from each of those nodes.
        problem: Why clients could not be started for clocks and connects; None: they could.
    """

    nodes: tuple[str, ...]
    places: int
    own_versions: Mapping[str, str | None]
    versions: Mapping[str, Mapping[str, str | None] | str]
    machines: Mapping[str, MachineReading] = dataclasses.field(default_factory=dict)
    clocks: Mapping[str, ClockReading] = dataclasses.field(default_factory=dict)
    connects: tuple[ConnectSample, ...] = ()
    problem: str | None = None


def read_cluster(
    plan: Plan, targets: Mapping[str, WireTarget], tell: Callable[[str], None]
) -> ClusterReading:
    """
    Start or join Ray, look at all nodes, leave.

    Args:
        plan: Where Ray is, and which nodes may hold clients.
        targets: What each node shall connect to, by base URL; may be empty.
        tell: Hears what is done.

    Raises:
        FleetError: Ray, or the cluster, cannot be reached.
    """
    # Ray takes a second to import; nobody should wait for it who did not ask for a cluster.
    from distbench.fleet.ray_runtime import RayRuntime

    address = plan.where.ray_address
    tell("starting Ray" if address is None else f"joining the Ray cluster at {address}")
    with contextlib.closing(RayRuntime(address)) as runtime:
        runtime.start()
        return _look(plan, targets, runtime, tell)


def _look(
    plan: Plan, targets: Mapping[str, WireTarget], runtime: RayRuntime, tell: Callable[[str], None]
) -> ClusterReading:
    from distbench.fleet.ray_each import call_on_each, own_versions, versions_of_each

    nodes = runtime.nodes()
    names = node_names(nodes)
    rules = PlacementRules(
        resource=plan.where.client_resource,
        label=plan.where.client_label,
        per_node=plan.where.clients_per_node,
    )
    tell(f"looking at {len(nodes)} nodes")
    versions = dict(zip(names.values(), versions_of_each(nodes, _VERSIONS_LIMIT_S), strict=True))
    reading = ClusterReading(
        nodes=tuple(names.values()),
        places=plan_clients(_NO_LIMIT, nodes, rules),
        own_versions=own_versions(),
        versions=versions,
    )
    if any(version != reading.own_versions for version in versions.values()):
        return dataclasses.replace(reading, problem="the versions differ")
    found = call_on_each(read_machine, nodes, _MACHINES_LIMIT_S)
    machines = {
        name: machine
        for name, machine in zip(names.values(), found, strict=True)
        if isinstance(machine, MachineReading)
    }
    reading = dataclasses.replace(reading, machines=machines)
    try:
        clocks, connects = _look_from_clients(plan, targets, runtime, nodes, rules, names, machines)
    except DistbenchError as error:
        return dataclasses.replace(reading, problem=str(error))
    return dataclasses.replace(reading, clocks=clocks, connects=tuple(connects))


def _look_from_clients(
    plan: Plan,
    targets: Mapping[str, WireTarget],
    runtime: RayRuntime,
    nodes: Sequence[Node],
    rules: PlacementRules,
    names: Mapping[str, str],
    machines: Mapping[str, MachineReading],
) -> tuple[dict[str, ClockReading], list[ConnectSample]]:
    """Start one client on each node that may hold some, as a run would, and let it measure."""
    from distbench.fleet.ray_fleet import RayFleet

    usable = sum(node.cpus >= 1 for node in client_nodes(nodes, rules))
    if usable == 0:
        raise FleetError("no node has a free CPU for a client; end what holds them, or add nodes")
    one_each = dataclasses.replace(rules, per_node=1)
    trust_env = plan.target.trust_env
    with contextlib.closing(RayFleet(usable, runtime, rules=one_each, trust_env=trust_env)) as fleet:
        hosts = fleet.start()
        anchor = time.time_ns() - time.monotonic_ns()
        clocks = {
            names[host.node_id]: ClockReading(
                offset=offset, wall_ahead_ns=_wall_ahead_ns(machines.get(names[host.node_id]), offset, anchor)
            )
            for host, offset in zip(hosts, fleet.measure_clocks(), strict=True)
        }
        return clocks, _connects(plan, targets, fleet, hosts, names)


def _connects(
    plan: Plan,
    targets: Mapping[str, WireTarget],
    fleet: Fleet,
    hosts: Sequence[HostInfo],
    names: Mapping[str, str],
) -> list[ConnectSample]:
    if not targets:
        return []
    setup = FleetSetup(
        targets=tuple(targets.values()),
        target_names=tuple(targets),
        # No request is sent: the clients only connect.
        request=RequestSettings(
            model="", endpoint=plan.target.endpoint, stream=True, usage=False, ignore_eos=False, extra_body={}
        ),
        workload=SyntheticWorkload(plan.prompts),
        http_client="fast",
        epoch_monotonic_ns=time.monotonic_ns(),
    )
    return [
        ConnectSample(
            node=names[hosts[probe.client].node_id],
            target=probe.target,
            connect_s=probe.connect_s,
            error=probe.error,
        )
        for probe in fleet.setup(setup)
    ]


def _wall_ahead_ns(machine: MachineReading | None, offset: ClockOffset, anchor_ns: int) -> int | None:
    """Return how far a node's wall clock is ahead, by its pair of clock readings and the offset of the monotonic clocks."""
    if machine is None:
        return None
    return machine.wall_ns - (offset.to_driver_ns(machine.monotonic_ns) + anchor_ns)


def node_names(nodes: Sequence[Node]) -> dict[str, str]:
    """Return a short name of each node by its id: the host name, and more where several share it."""
    by_host = Counter(node.hostname for node in nodes)
    by_address = Counter((node.hostname, node.address) for node in nodes)
    names = {}
    for node in nodes:
        name = node.hostname or node.address
        if by_host[node.hostname] > 1 and node.address:
            name = f"{name}/{node.address}"
        if by_address[node.hostname, node.address] > 1:
            name = f"{name}/{node.node_id[:6]}"
        names[node.node_id] = name
    return names
