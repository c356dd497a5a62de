"""Fixtures: one Ray cluster for all tests of a session."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.fleet.ray_nodes import ray_nodes

if TYPE_CHECKING:
    from distbench.fleet.ray_runtime import RayRuntime


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[tuple[str, Path]]:
    """Give the address and the folder of a cluster: a head without CPUs, two nodes with two each."""
    with ray_nodes(
        {"num_cpus": 2, "resources": {"client_host": 1}},
        {"num_cpus": 2, "labels": {"zone": "b"}},
    ) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def ray_runtime(ray_cluster: tuple[str, Path]) -> Iterator["RayRuntime"]:
    """Give a connection to the cluster."""
    from distbench.fleet.ray_runtime import RayRuntime

    runtime = RayRuntime(ray_cluster[0])
    runtime.start()
    yield runtime
    runtime.close()
