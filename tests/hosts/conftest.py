"""Fixtures: one cluster of machines for all tests that need hosts."""

from collections.abc import Iterator

import pytest

from tests.hosts.cluster import Cluster, machines
from tests.hosts.guide import command


@pytest.fixture(scope="session")
def blank() -> Iterator[Cluster]:
    """Give the machines before `ray up`."""
    with machines() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def cluster(blank: Cluster) -> Cluster:
    """Give the cluster, up, by the commands of docs/cluster.md."""
    blank.type(command("get-auth-token"))
    # Ray gives its head 30 s to come up, which a machine that does much else may need more than once.
    if blank.type(command("ray up"), check=False).returncode != 0:
        blank.type(command("ray up"))
    blank.type(command("ray status"))
    return blank
