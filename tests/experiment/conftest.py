"""Servers that the tests of the experiments share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from distbench.sim.embedded import EmbeddedServer
from distbench.sim.settings import SimSettings
from distbench.sim.step_time import StepTimeSettings

FAST_STEPS = StepTimeSettings(
    fixed_s=0.002, weights_s=0.0, per_sequence_s=0.0, per_prefill_token_s=0.0, per_kv_token_s=0.0
)


@pytest.fixture(scope="session")
def fast_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """A simulated server with 2 ms steps and room for 8 sequences; its truth log is settings.truth_log."""
    log = tmp_path_factory.mktemp("sim") / "truth.jsonl"
    settings = SimSettings(max_num_seqs=8, step_time=FAST_STEPS, truth_log=str(log))
    with EmbeddedServer(settings) as server:
        yield server


@pytest.fixture
def truth_log(fast_server: EmbeddedServer) -> Path:
    """The truth log of fast_server."""
    return Path(str(fast_server.settings.truth_log))
