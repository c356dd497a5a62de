"""A Ray cluster of several nodes on loopback, for the tests."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from distbench.fleet.ray_runtime import _loopback_only
from tests.support.needs import ROOT

_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
    # Actors import the tests' workload from the source tree.
    "PYTHONPATH": str(ROOT),
}


class Nodes(NamedTuple):
    """
    A running cluster.

    Attributes:
        address: Of its head.
        folder: Where Ray writes.
        join: Adds a node with arguments such as num_cpus, and returns what takes it out again.
    """

    address: str
    folder: Path
    join: Callable[..., Callable[[], None]]


@contextlib.contextmanager
def ray_nodes(*nodes: dict[str, Any]) -> Iterator[Nodes]:
    """
    Run a head without CPUs and the given nodes.

    Args:
        nodes: Arguments of each node, such as num_cpus, resources, labels.
    """
    from ray.cluster_utils import Cluster

    folder = Path(tempfile.mkdtemp(prefix="db-ray-", dir="/tmp"))
    with pytest.MonkeyPatch.context() as patch, _loopback_only():
        for name, value in {**_SETTINGS, "RAY_TMPDIR": str(folder)}.items():
            patch.setenv(name, value)
        small = {"object_store_memory": 100 * 2**20, "include_dashboard": False}
        cluster: Any = Cluster(
            initialize_head=True,
            head_node_args={"num_cpus": 0, "node_ip_address": "127.0.0.1", **small},
        )

        def join(**node: Any) -> Callable[[], None]:
            joined = cluster.add_node(node_ip_address="127.0.0.1", object_store_memory=100 * 2**20, **node)
            return lambda: cluster.remove_node(joined)

        try:
            for node in nodes:
                join(**node)
            cluster.wait_for_nodes()
            yield Nodes(cluster.address, folder, join)
        finally:
            cluster.shutdown()
            shutil.rmtree(folder, ignore_errors=True)


def session_folder_text(folder: Path) -> bytes:
    """Return everything that Ray wrote into its folder, sockets left out."""
    found = []
    for root, _, names in os.walk(folder):
        for name in names:
            path = Path(root, name)
            if path.is_file():
                found.append(path.read_bytes())
    return b"\n".join(found)
