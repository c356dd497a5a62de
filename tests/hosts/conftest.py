"""Fixtures: one cluster of machines for all tests that need hosts."""

from collections.abc import Iterator

import pytest

from tests.hosts.cluster import ALL_JOINED, Cluster, machines


@pytest.fixture(scope="session")
def blank() -> Iterator[Cluster]:
    """Give the machines before `ray up`."""
    with machines() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def cluster(blank: Cluster) -> Cluster:
    """Give the cluster, up, by the commands of docs/cluster.md."""
    blank.ray("get-auth-token", "--generate")
    blank.admin.run("chmod", "600", "/root/.ray/auth_token")
    blank.ray("up", "-y", "cluster.yaml")
    blank.ray("exec", "cluster.yaml", ALL_JOINED)
    return blank
