"""
The newcomer's first measurement (floor F5), called by scripts/quickstart: the embedded server, a local Ray, a few levels.

It is ``distbench sim`` and ``distbench capacity`` in one process, with settings at which the server's ceiling is far below what
one client carries: it is the server that is measured.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from rich.console import Console

from distbench.cli.live import make_observer
from distbench.cli.load import show_result
from distbench.cli.main import guarded
from distbench.cli.streams import claim_stdout
from distbench.core.plan_io import build_plan
from distbench.sim.embedded import EmbeddedServer
from distbench.sim.settings import SimSettings

_SERVER = SimSettings(model="quickstart-model", max_num_seqs=16)
# Output lengths differ, so that requests do not end in lockstep.
_FLAGS: dict[str, Any] = {
    "connections": "2,8,32",
    "repeats": 0,
    "duration": "8s",
    "system-tokens": 48,
    "user-tokens": 48,
    "output-tokens": "uniform:16:48",
}


def quickstart() -> int:
    """Measure the embedded server and say how to go on; returns the exit code."""
    out = claim_stdout()
    with EmbeddedServer(_SERVER) as server:
        from distbench.experiment.commands import run_plan

        plan = build_plan("capacity", {}, {**_FLAGS, "urls": [server.url]})
        errors = Console(stderr=True)
        errors.print(
            f"embedded server at {server.url}: {_SERVER.max_num_seqs} sequences at once", highlight=False
        )
        with make_observer(errors, quiet=False) as observer:
            result = run_plan(plan, observer, environ=os.environ)
    console = Console(file=out)
    show_result(result, console)
    console.print(
        "\nThis was the embedded server. Point distbench at your own:\n"
        "  .venv/bin/distbench capacity http://HOST:8000 --max 512",
        highlight=False,
        soft_wrap=True,
    )
    return result.exit_code


if __name__ == "__main__":
    sys.exit(guarded(quickstart))
