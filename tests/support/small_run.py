"""A small load on a test's server, by the function that the commands call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from distbench.core.plan_io import build_plan
from distbench.experiment.commands import run_plan
from distbench.experiment.result import RunResult
from distbench.experiment.signals import StopFlag


def small_run(
    url: str,
    output: Path,
    stop: StopFlag | None = None,
    observer: Any = None,
    *,
    command: str = "run",
    **flags: Any,
) -> RunResult:
    """Carry out a command without Ray and return its result; flags are plan keys, with underscores, and win over the small ones."""
    settings = {
        "urls": [url],
        "connections": "12",
        "requests": 60,
        "system-tokens": 16,
        "user-tokens": 16,
        "output-tokens": 8,
        "ray-address": "none",
        "output": str(output),
        **{name.replace("_", "-"): value for name, value in flags.items()},
    }
    return run_plan(build_plan(command, {}, settings), observer, environ={"K": "sk-secret"}, stop=stop)
