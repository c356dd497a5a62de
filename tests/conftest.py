"""Fixtures and rules for all tests: what a marker needs, and how long it may take."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.support import cmock, ports
from tests.support.needs import MARKERS, missing, skip_or_fail
from tests.support.vllm import VllmServers

# `scripts/test --fast` asks for it: fewer examples of each property, so that the subset stays under two minutes.
settings.register_profile("fast", max_examples=20, deadline=None)
# No limit on the time of one example: these machines are shared, and slowness is no failure of a property.
settings.register_profile("steady", deadline=None)
settings.load_profile("steady")

# A test that is the first to use a shared server pays for its start; seconds. The default is in pyproject.toml.
_TIMEOUTS_S = {"vllm": 600, "hosts": 400, "ray": 300, "bench": 300, "slow": 300}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the tests that start heavy things the time for it."""
    for item in items:
        if item.get_closest_marker("timeout") is None:
            allowed_s = [
                seconds for marker, seconds in _TIMEOUTS_S.items() if item.get_closest_marker(marker)
            ]
            if allowed_s:
                item.add_marker(pytest.mark.timeout(max(allowed_s)))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test, or fail it under CI, when the machine lacks what its markers need."""
    for marker in sorted(MARKERS):
        if item.get_closest_marker(marker) is not None:
            reason = missing(marker)
            if reason is not None:
                skip_or_fail(f"needs {marker}: {reason}")


@pytest.fixture
def free_port() -> int:
    """Return a port of 127.0.0.1 for a server that cannot pick its own."""
    return ports.free_port()


@pytest.fixture
def mock_server(tmp_path: Path) -> Iterator[Callable[..., cmock.MockServer]]:
    """Start C reference servers, `mock_server(itl_ms=20)`; the arguments are those of `MockServer`. All end with the test."""
    servers: list[cmock.MockServer] = []

    def start(**settings: Any) -> cmock.MockServer:
        server = cmock.MockServer(cmock.build("mockserver"), tmp_path, **settings)
        servers.append(server)
        server.start()
        return server

    yield start
    for server in servers:
        server.stop()


@pytest.fixture(scope="session")
def vllm_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServers]:
    """Give real vLLM servers by their flags, `vllm_servers.url("--max-num-seqs", "4")`; they end with the test run."""
    servers = VllmServers(tmp_path_factory.mktemp("vllm"))
    yield servers
    servers.stop()
