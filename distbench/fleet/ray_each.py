"""
One call on every node of a cluster (floor F4): for looking at the nodes, not for load.

The calls ask for no CPU, so that they run on full nodes too, and every wait has a limit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from distbench.fleet.placement import Node
from distbench.fleet.ray_fleet import first_line

_T = TypeVar("_T")


def call_on_each(function: Callable[[], _T], nodes: Sequence[Node], limit_s: float) -> list[_T | RayError]:
    """
    Call a function in a process of each node, on all of them at the same time.

    Args:
        function: A function of an installed module is looked up on the node; one made inside another function travels whole.
        nodes: Live nodes of the cluster that this process has joined.
        limit_s: For all of them together.

    Returns:
        In the order of the nodes: what it returned, or why there is nothing (GetTimeoutError where the node gave no answer in time).
    """
    remote: Any = ray.remote(function)
    refs = [
        remote.options(
            num_cpus=0,
            max_retries=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node.node_id, soft=False),
        ).remote()
        for node in nodes
    ]
    ray.wait(refs, num_returns=len(refs), timeout=limit_s, fetch_local=True)
    return [_result(ref) for ref in refs]


def _result(ref: Any) -> Any:
    try:
        return ray.get(ref, timeout=0.1)
    except RayError as error:
        ray.cancel(ref, force=True)
        return error


def versions_of_each(nodes: Sequence[Node], limit_s: float) -> list[dict[str, str | None] | str]:
    """
    Return the versions of ray, python and distbench on each node, None for what is not installed; a sentence where there is no answer.

    It needs no distbench on the nodes.
    """
    found = call_on_each(_versions_function(), nodes, limit_s)
    return [first_line(each) if isinstance(each, RayError) else each for each in found]


def own_versions() -> dict[str, str | None]:
    """Return the same of this process."""
    return _versions_function()()


def _versions_function() -> Callable[[], dict[str, str | None]]:
    # Made here and not on the module's level: Ray then sends the code itself, where it would else send the module's name.
    def versions() -> dict[str, str | None]:
        import importlib
        import platform

        found: dict[str, str | None] = {"python": platform.python_version()}
        for name in ("ray", "distbench"):
            try:
                found[name] = str(importlib.import_module(name).__version__)
            except ImportError:
                found[name] = None
        return found

    return versions


__all__ = ["call_on_each", "own_versions", "versions_of_each"]
