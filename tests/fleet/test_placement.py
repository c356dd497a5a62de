"""Clients go evenly to the nodes that may hold them."""

import collections

import pytest

from distbench.errors import PlacementError
from distbench.fleet.placement import Node, PlacementRules, is_settling, place, plan_clients


def node(name: str, cpus: int = 8, **changes: object) -> Node:
    """Return a node."""
    values = {
        "node_id": name, "address": name, "hostname": name, "cpus": cpus, "total_cpus": cpus, "gpus": 0.0, "resources": {}, "labels": {},
        "is_driver": False, **changes,
    }  # fmt: skip
    return Node(**values)  # type: ignore[arg-type]


def spread(num_clients: int, nodes: list[Node], **rules: object) -> dict[str, int]:
    """Return how many clients each node gets."""
    placed = place(num_clients, nodes, PlacementRules(**rules))  # type: ignore[arg-type]
    return dict(collections.Counter(each.node_id for each in placed))


def test_clients_are_spread_evenly() -> None:
    """8 clients on two nodes of 8 CPUs: 4 and 4, never 8 and 0."""
    assert spread(8, [node("a"), node("b")]) == {"a": 4, "b": 4}
    assert spread(3, [node("a"), node("b")]) == {"a": 2, "b": 1}


def test_a_small_node_is_filled_and_the_rest_goes_on() -> None:
    """As even as the room allows."""
    assert spread(6, [node("a", cpus=1), node("b"), node("c")]) == {"a": 1, "b": 3, "c": 2}


def test_neighbouring_clients_lie_on_different_nodes() -> None:
    """Client 0, 1, 2, 3: a, b, a, b."""
    placed = place(4, [node("b"), node("a")], PlacementRules())
    assert [each.node_id for each in placed] == ["a", "b", "a", "b"]


def test_nodes_with_gpus_are_left_to_the_server_while_there_are_others() -> None:
    """Unless they are all there is, or a rule names them."""
    gpu = node("g", gpus=8.0, labels={"role": "x"}, resources={"client_host": 1.0})
    assert spread(2, [gpu, node("a")]) == {"a": 2}
    assert spread(2, [gpu]) == {"g": 2}
    assert spread(1, [gpu, node("a")], label="role=x") == {"g": 1}
    assert spread(1, [gpu, node("a")], resource="client_host") == {"g": 1}


def test_fewer_places_than_asked_stops_with_both_numbers() -> None:
    """The message says what to do."""
    with pytest.raises(PlacementError, match=r"8 clients asked, 4 can be placed.*--allow-fewer"):
        place(8, [node("a", cpus=4)], PlacementRules())
    with pytest.raises(PlacementError, match="4 clients asked, 2 can be placed"):
        place(4, [node("a"), node("b")], PlacementRules(per_node=1))
    with pytest.raises(PlacementError, match="nodes with the label 'role=x'"):
        place(1, [node("a")], PlacementRules(label="role=x"))


def test_allow_fewer_takes_what_there_is_but_not_nothing() -> None:
    """None at all is never a run."""
    assert spread(8, [node("a", cpus=3)], allow_fewer=True) == {"a": 3}
    with pytest.raises(PlacementError, match="0 can be placed"):
        place(8, [node("a", cpus=0)], PlacementRules(allow_fewer=True))


@pytest.mark.parametrize(
    ("connections", "nodes", "clients"),
    [
        (1024, [node("d", cpus=2, is_driver=True)], 1),
        (1024, [node("d", cpus=1, is_driver=True)], 1),
        (64, [node("a"), node("b")], 1),
        (257, [node("a"), node("b")], 2),
        (4096, [node("a"), node("b"), node("d", cpus=4, is_driver=True)], 16),
        (4096, [node("a", cpus=2), node("d", cpus=4, is_driver=True)], 5),
    ],
    ids=["one-machine", "one-cpu", "light", "just-more", "by-load", "by-places"],
)
def test_default_clients_follow_the_load_and_leave_the_driver_a_cpu(
    connections: int, nodes: list[Node], clients: int
) -> None:
    """One client per 256 connections, at most one per free CPU."""
    assert plan_clients(connections, nodes, PlacementRules()) == clients


def test_cpus_in_use_are_waited_for_only_where_they_would_help() -> None:
    """A run that has just ended frees its CPUs a moment later."""
    busy, rules = node("a", cpus=1, total_cpus=4), PlacementRules()
    assert is_settling(2, [busy], rules)
    assert is_settling(9, [busy], rules)
    assert not is_settling(1, [busy], rules)
    assert not is_settling(9, [node("a", cpus=4)], rules)


def test_default_clients_respect_the_limit_per_node() -> None:
    """Two nodes, one client each."""
    assert plan_clients(4096, [node("a"), node("b")], PlacementRules(per_node=1)) == 2
