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

from distbench.client.messages import RequestSettings
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
        return _Look(plan, targets, runtime).read(tell)


class _Look:
    """One look at a cluster that this process has joined."""

    def __init__(self, plan: Plan, targets: Mapping[str, WireTarget], runtime: RayRuntime) -> None:
        self._plan = plan
        self._targets = targets
        self._runtime = runtime
        self._nodes = runtime.nodes()
        self._names = node_names(self._nodes)
        where = plan.where
        self._rules = PlacementRules(
            resource=where.client_resource, label=where.client_label, per_node=where.clients_per_node
        )

    def read(self, tell: Callable[[str], None]) -> ClusterReading:
        """Ask all nodes; what cannot be asked is left out, and `problem` says why."""
        from distbench.fleet.ray_each import own_versions, versions_of_each

        tell(f"looking at {len(self._nodes)} nodes")
        versions = versions_of_each(self._nodes, _VERSIONS_LIMIT_S)
        reading = ClusterReading(
            nodes=tuple(self._names.values()),
            places=plan_clients(_NO_LIMIT, self._nodes, self._rules),
            own_versions=own_versions(),
            versions=dict(zip(self._names.values(), versions, strict=True)),
        )
        if any(version != reading.own_versions for version in versions):
            # Code of one version would be run by another: nothing more can be asked.
            return dataclasses.replace(reading, problem="the versions differ")
        reading = dataclasses.replace(reading, machines=self._machines())
        tell("starting a client on each node")
        try:
            return self._with_clients(reading)
        except DistbenchError as error:
            return dataclasses.replace(reading, problem=str(error))

    def _machines(self) -> dict[str, MachineReading]:
        from distbench.fleet.ray_each import call_on_each

        found = call_on_each(read_machine, self._nodes, _MACHINES_LIMIT_S)
        return {
            name: machine
            for name, machine in zip(self._names.values(), found, strict=True)
            if isinstance(machine, MachineReading)
        }

    def _with_clients(self, reading: ClusterReading) -> ClusterReading:
        """Start one client on each node that may hold some, as a run would, and let it measure."""
        from distbench.fleet.ray_fleet import RayFleet

        usable = sum(node.cpus >= 1 for node in client_nodes(self._nodes, self._rules))
        if usable == 0:
            raise FleetError("no node has a free CPU for a client; end what holds them, or add nodes")
        one_each = dataclasses.replace(self._rules, per_node=1)
        fleet = RayFleet(usable, self._runtime, rules=one_each, trust_env=self._plan.target.trust_env)
        with contextlib.closing(fleet):
            names = [self._names[host.node_id] for host in fleet.start()]
            wall_minus_monotonic_ns = time.time_ns() - time.monotonic_ns()
            clocks = {
                name: ClockReading(
                    offset=offset,
                    wall_ahead_ns=wall_ahead_ns(reading.machines.get(name), offset, wall_minus_monotonic_ns),
                )
                for name, offset in zip(names, fleet.measure_clocks(), strict=True)
            }
            return dataclasses.replace(reading, clocks=clocks, connects=tuple(self._connects(fleet, names)))

    def _connects(self, fleet: Fleet, names: Sequence[str]) -> list[ConnectSample]:
        """Let each client try each target; `names` are the nodes of the clients."""
        if not self._targets:
            return []
        setup = FleetSetup(
            targets=tuple(self._targets.values()),
            target_names=tuple(self._targets),
            # No request is sent: the clients only connect.
            request=RequestSettings(
                model="", endpoint="chat", stream=True, usage=False, ignore_eos=False, extra_body={}
            ),
            workload=SyntheticWorkload(self._plan.prompts),
            http_client="fast",
            epoch_monotonic_ns=time.monotonic_ns(),
        )
        return [
            ConnectSample(
                node=names[probe.client],
                target=probe.target,
                connect_s=probe.connect_s,
                error=probe.error,
            )
            for probe in fleet.setup(setup)
        ]


def wall_ahead_ns(
    machine: MachineReading | None, offset: ClockOffset, wall_minus_monotonic_ns: int
) -> int | None:
    """
    Return how far a node's wall clock is ahead of the driver's.

    Args:
        machine: Its pair of clock readings; None: not known, and so is the result.
        offset: Of the monotonic clocks.
        wall_minus_monotonic_ns: The driver's own wall clock minus its monotonic clock.
    """
    if machine is None:
        return None
    return machine.wall_ns - (offset.to_driver_ns(machine.monotonic_ns) + wall_minus_monotonic_ns)


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
