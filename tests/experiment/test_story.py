"""docs/ninety-nine-percent.md, executed: paced batches and a burst on the same server, at the same GPU utilisation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from distbench.core.plan_io import build_plan
from distbench.experiment.commands import run_plan
from distbench.experiment.result import RunResult
from distbench.sim.embedded import EmbeddedServer
from distbench.sim.settings import SimSettings
from distbench.sim.step_time import StepTimeSettings
from tests.support.stub_server import Reply, stub_server

_GPU = b"""# HELP DCGM_FI_DEV_GPU_UTIL GPU utilization (in %).
# TYPE DCGM_FI_DEV_GPU_UTIL gauge
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-1"} 99
"""
_PROMPTS = {"system-tokens": 64, "user-tokens": 64, "output-tokens": 48}


def measure(url: str, gpu_url: str, output: Path, **flags: Any) -> RunResult:
    """Run one of the commands of the page."""
    settings = {
        "urls": [url],
        "gpu-metrics-url": [gpu_url],
        "ray-address": "none",
        "output": str(output),
        **_PROMPTS,
    }
    settings |= {name.replace("_", "-"): value for name, value in flags.items()}
    return run_plan(build_plan("run", {}, settings))


@pytest.mark.slow
def test_paced_batches_are_a_lower_bound_and_a_burst_is_the_capacity(tmp_path: Path) -> None:
    """
    32 requests of 48 tokens every 3 s are 512 tokens/s, whatever the server can; a burst gives about twice that and more.

    The GPU shows 99 % in both, and both verdicts are made from what the server's queue shows.
    """
    step = StepTimeSettings(fixed_s=0.02, weights_s=0.0)
    metrics = {"GET /metrics": Reply(body=_GPU, headers={"Content-Type": "text/plain"})}
    with (
        EmbeddedServer(SimSettings(max_num_seqs=32, step_time=step)) as server,
        stub_server(metrics) as (gpu, _),
    ):
        paced = measure(
            server.url, f"{gpu}/metrics", tmp_path / "paced",
            pattern="paced", batch_size=32, batch_interval="3s", connections="32", requests=160,
        )  # fmt: skip
        burst = measure(server.url, f"{gpu}/metrics", tmp_path / "burst", connections="64", requests=400)
    slow, full = paced.rows[0], burst.rows[0]
    assert (slow["gpu_util_mean"], full["gpu_util_mean"]) == (0.99, 0.99)
    assert slow["output_token_rate"] <= 520
    assert full["output_token_rate"] >= 1.7 * slow["output_token_rate"]
    assert (paced.findings["verdict"], paced.findings["lower_bound"]) == ("not_saturated", True)
    assert (burst.findings["verdict"], burst.findings["limit"]) == ("saturated", "sequences")
