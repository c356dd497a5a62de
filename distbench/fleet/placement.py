"""
Which client goes to which node, and how many clients a load needs (floor F4, pure).

Clients are spread evenly over the nodes that may hold them. A node with GPUs most likely runs the server, so it is left alone as
long as there are others, unless a resource or a label names the client hosts.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from distbench.errors import PlacementError

CONNECTIONS_PER_CLIENT = 256
"""Connections that one client is given by default: a client holds thousands, but at 20 ms a token this keeps it near a tenth busy."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """
    A live node of the cluster.

    Attributes:
        node_id: Ray's.
        address: IP.
        hostname: Of the machine.
        cpus: Free CPUs, whole ones.
        total_cpus: CPUs in use or not.
        gpus: GPUs, in use or not.
        resources: All resources by name, in use or not.
        labels: Ray's node labels.
        is_driver: The driver runs here.
    """

    node_id: str
    address: str
    hostname: str
    cpus: int
    total_cpus: int
    gpus: float
    resources: Mapping[str, float]
    labels: Mapping[str, str]
    is_driver: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PlacementRules:
    """
    Where clients may go.

    Attributes:
        resource: Only to nodes that have this custom resource; None: any.
        label: Only to nodes with this key=value label; None: any.
        per_node: At most so many on a node; None: as many as it has free CPUs.
        allow_fewer: Fewer places than asked are taken as they are.
    """

    resource: str | None = None
    label: str | None = None
    per_node: int | None = None
    allow_fewer: bool = False


def client_nodes(nodes: Sequence[Node], rules: PlacementRules) -> list[Node]:
    """Return the nodes that may hold clients, in a fixed order (address, then id)."""
    fitting = [node for node in nodes if _fits(node, rules)]
    if rules.resource is None and rules.label is None:
        without_gpus = [node for node in fitting if not node.gpus]
        fitting = without_gpus or fitting
    return sorted(fitting, key=lambda node: (node.address, node.node_id))


def is_settling(num_clients: int, nodes: Sequence[Node], rules: PlacementRules) -> bool:
    """
    Tell whether waiting a little may give more places: CPUs are in use that would be needed.

    They may be those of a run that has just ended.
    """
    candidates = client_nodes(nodes, rules)
    free = sum(_room(node.cpus, rules) for node in candidates)
    in_all = sum(_room(node.total_cpus, rules) for node in candidates)
    return free < min(num_clients, in_all)


def place(num_clients: int, nodes: Sequence[Node], rules: PlacementRules) -> list[Node]:
    """
    Return the node of each client.

    Args:
        num_clients: How many are asked for; >= 1.
        nodes: All live nodes.
        rules: Where clients may go.

    Returns:
        Shape (num_clients,), or shorter with rules.allow_fewer; node loads differ by at most one as far as their room allows.

    Raises:
        PlacementError: fewer places than asked, or none; both numbers are in the message.
    """
    candidates = client_nodes(nodes, rules)
    room = [_room(node.cpus, rules) for node in candidates]
    places = sum(room)
    if places == 0 or (places < num_clients and not rules.allow_fewer):
        raise PlacementError(_too_few(num_clients, places, candidates, nodes, rules))
    counts = [0] * len(candidates)
    for _ in range(min(num_clients, places)):
        emptiest = min((i for i in range(len(candidates)) if counts[i] < room[i]), key=lambda i: counts[i])
        counts[emptiest] += 1
    # In turn over the nodes, so that neighbouring clients (and their blocks of connections) lie on different machines.
    placed = []
    for turn in range(max(counts)):
        placed += [node for node, count in zip(candidates, counts, strict=True) if count > turn]
    return placed


def plan_clients(connections: int, nodes: Sequence[Node], rules: PlacementRules) -> int:
    """
    Return the default number of clients for a load: one per 256 connections, as far as there are places, at least 1.

    On the driver's node one CPU is left to the driver and Ray.

    Args:
        connections: The largest number of connections of the run.
        nodes: All live nodes.
        rules: Where clients may go.
    """
    places = 0
    for node in client_nodes(nodes, rules):
        spare = 1 if node.is_driver else 0
        limit = node.cpus if rules.per_node is None else rules.per_node
        places += max(0, min(limit, node.cpus - spare))
    return max(1, min(places, math.ceil(connections / CONNECTIONS_PER_CLIENT)))


def _fits(node: Node, rules: PlacementRules) -> bool:
    if rules.resource is not None and not node.resources.get(rules.resource):
        return False
    if rules.label is not None:
        key, _, value = rules.label.partition("=")
        return node.labels.get(key) == value
    return True


def _room(cpus: int, rules: PlacementRules) -> int:
    return cpus if rules.per_node is None else min(cpus, rules.per_node)


def _too_few(
    num_clients: int, places: int, candidates: Sequence[Node], nodes: Sequence[Node], rules: PlacementRules
) -> str:
    parts = [
        f"{node.hostname or node.address}: {_room(node.cpus, rules)} (of {node.total_cpus} CPUs {node.cpus} are free)"
        for node in candidates
    ]
    if rules.resource is not None:
        why = f"nodes with the resource {rules.resource!r}"
    elif rules.label is not None:
        why = f"nodes with the label {rules.label!r}"
    else:
        why = "nodes"
    return (
        f"{num_clients} clients asked, {places} can be placed: each takes one CPU, and of {len(nodes)} nodes {len(candidates)} are "
        f"usable {why} ({'; '.join(parts) or 'none'}); ask for fewer (--clients), add nodes, or give --allow-fewer"
    )
