#!/usr/bin/env python3
"""
How long `distbench report` takes on a large run, and how much memory.

The run has one level, the hardest case, and neither levels.parquet nor findings.json: everything is judged from its rows.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from distbench.core.levels import LevelSpec
from distbench.core.plan_io import build_plan, plan_to_table
from distbench.store.recorder import Recorder
from distbench.store.rundir import RunDir
from distbench.store.runinfo import RunInfo, Totals, level_entry
from scripts.bench.processes import run
from scripts.bench.synthetic_rows import URL, Stream, rows
from scripts.bench.tables import print_table, save, shown

_CLIENTS = 8
_CONNECTIONS = 1_024
_ROWS_AT_ONCE = 100_000


def write_run(folder: Path, requests: int, tokens: int) -> None:
    """
    Write a run directory.

    Args:
        folder: Must not exist.
        requests: Of its level.
        tokens: Of each request, a chunk each.
    """
    directory = RunDir.create(folder)
    recorder = Recorder(directory)
    stream = Stream(connections=_CONNECTIONS, tokens=tokens, clients=_CLIENTS)
    for number, start in enumerate(range(0, requests, _ROWS_AT_ONCE)):
        client = number % _CLIENTS
        recorder.add_requests(
            rows(stream, start, min(_ROWS_AT_ONCE, requests - start)), level=0, client=client
        )
    recorder.close()
    values = {
        "urls": [URL],
        "model": "synthetic",
        "connections": [_CONNECTIONS],
        "requests": requests,
        "warmup": 0,
        "output-tokens": tokens,
    }
    plan = plan_to_table(build_plan("run", values, {}))
    spec = LevelSpec(level=0, connections=_CONNECTIONS, requests=requests, warmup=0)
    now_ns = time.time_ns()
    directory.write_plan(plan)
    directory.write_info(
        RunInfo(
            status="complete",
            command="run",
            plan=plan,
            hosts=[{"client": client, "host": "here", "cpus": 1} for client in range(_CLIENTS)],
            clients_per_host={"here": _CLIENTS},
            epoch_wall_ns=now_ns,
            epoch_monotonic_ns=time.monotonic_ns(),
            ended_wall_ns=now_ns,
            seeds={"prompts": 0},
            totals=Totals(planned=requests, ok=requests),
            levels=[level_entry(spec)],
        )
    )


def measure(requests: int, tokens: int) -> dict[str, Any]:
    """Make a run and report on it."""
    with tempfile.TemporaryDirectory(prefix="distbench-analysis-") as name:
        folder = Path(name) / "run"
        write_run(folder, requests, tokens)
        num_bytes = sum(path.stat().st_size for path in folder.rglob("*.parquet"))
        program = Path(sys.executable).with_name("distbench")
        usage = run([str(program), "report", str(folder), "--format", "json"])
    return {
        "requests": requests,
        "chunk_times": requests * tokens,
        "on_disk_gb": num_bytes / 2**30,
        "wall_s": usage.wall_s,
        "cpu_s": usage.total_cpu_s,
        "rss_gb": sum(usage.rss_bytes.values()) / 2**30,
    }


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="10,000 requests only")
    parser.add_argument("--requests", default="1000000,10000000", help="sizes, separated by commas")
    parser.add_argument("--tokens", type=int, default=16, help="chunk times of each request")
    parser.add_argument("--json", type=Path, help="file for all figures")
    arguments = parser.parse_args()
    sizes = [10_000] if arguments.quick else [int(size) for size in arguments.requests.split(",")]
    results = [measure(size, arguments.tokens) for size in sizes]
    print_table(list(results[0]), [[shown(value) for value in row.values()] for row in results])
    save(arguments.json, {"results": results})


if __name__ == "__main__":
    main()
