"""Fixtures of the simulator's tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from distbench.sim.server import SimServer
from distbench.sim.settings import SimSettings
from tests.sim.servers import FAST, ServerFactory, ServerThread


@pytest.fixture
def start_server() -> Iterator[ServerFactory]:
    """Start servers with 1 ms steps; settings are given as keywords."""
    running: list[ServerThread] = []

    def start(**settings: Any) -> SimServer:
        thread = ServerThread(SimSettings(**{"model": "tiny", "step_time": FAST, **settings}))
        running.append(thread)
        return thread.start()

    yield start
    for thread in running:
        thread.stop()
