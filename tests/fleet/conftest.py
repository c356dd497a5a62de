"""Fixtures: one Ray cluster for all tests of a session."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.fleet.ray_nodes import Nodes, ray_nodes

if TYPE_CHECKING:
    from distbench.fleet.ray_runtime import RayRuntime


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[Nodes]:
    """Give a cluster: a head without CPUs, two nodes with two each."""
    with ray_nodes(
        {"num_cpus": 2, "resources": {"client_host": 1}},
        {"num_cpus": 2, "labels": {"zone": "b"}},
    ) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def ray_runtime(ray_cluster: Nodes) -> Iterator["RayRuntime"]:
    """Give a connection to the cluster."""
    from distbench.fleet.ray_runtime import RayRuntime

    runtime = RayRuntime(ray_cluster.address)
    runtime.start()
    yield runtime
    runtime.close()
