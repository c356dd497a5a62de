"""What only the fleet of threads must show."""

import dataclasses

import pytest

from distbench.core.prompts import Prompt
from distbench.core.records import Phase
from distbench.errors import FleetError
from distbench.fleet.base import start_lead_s
from distbench.fleet.local import LocalFleet
from tests.client.load_server import LoadServer, stream
from tests.client.plans import TinyWorkload, level
from tests.fleet.drive import drive, fleet_setup


@dataclasses.dataclass(frozen=True)
class FailingWorkload(TinyWorkload):
    """A workload with a bug that shows at one request."""

    def prompt(self, *, phase: Phase, level: int, index: int, users_per_request: int) -> Prompt:
        """Fail at request 60."""
        if index == 60:
            raise RuntimeError("no such line")
        return super().prompt(phase=phase, level=level, index=index, users_per_request=users_per_request)


def test_a_client_with_a_fault_of_its_own_is_lost_with_its_reason_and_keeps_its_rows() -> None:
    """Nothing hangs; the fleet has no client for another level then."""
    fleet = LocalFleet(1)
    fleet.start()
    try:
        with LoadServer(stream(1)) as server:
            fleet.setup(fleet_setup(server.url, workload=FailingWorkload()))
            result = drive(fleet, level(connections=2, requests=200))
        assert result.finished == {}
        assert result.lost[0].reason == "RuntimeError: no such line"
        assert len(result.rows) >= 1
        assert list(fleet.alive()) == [False]
        with pytest.raises(FleetError, match="no client is left"):
            fleet.start_level(level())
    finally:
        fleet.close()


def test_close_ends_a_level_under_way_and_may_be_called_twice() -> None:
    """Threads end within seconds."""
    fleet = LocalFleet(2)
    fleet.start()
    with LoadServer(stream(5000, 0.02)) as server:
        fleet.setup(fleet_setup(server.url))
        fleet.start_level(level(connections=4, requests=8), lead_s=0.1)
        fleet.close()
        fleet.close()


def test_the_lead_grows_with_the_connections_of_a_client() -> None:
    """10,000 connections of one client take ten seconds more; of ten clients one."""
    assert start_lead_s(level(connections=10_000), 1, 1.0) == 11.0
    assert start_lead_s(level(connections=10_000), 10, 1.0) == 2.0
