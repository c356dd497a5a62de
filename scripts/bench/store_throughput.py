#!/usr/bin/env python3
"""
How many rows and chunk times per second the recorder takes, and what a request takes on disk.

It gets what 16 clients at 50,000 tokens/s each send: a table of each client per second. Measured is the time from the table to the
file, compression included, on one core; the target is five times what such a cluster produces.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

from distbench.store.recorder import Recorder
from distbench.store.rundir import RunDir
from scripts.bench.synthetic_rows import Stream, rows
from scripts.bench.tables import median, print_table, save, shown, spread

_CLIENTS = 16
_TOKENS_PER_S = 50_000
_WANTED = 5


def measure(seconds: int, tokens: int, folder: Path) -> dict[str, float]:
    """
    Record so many seconds of the cluster's rows.

    Args:
        seconds: Of the cluster's time.
        tokens: Of each request.
        folder: Must not exist.
    """
    count = _TOKENS_PER_S // tokens
    stream = Stream(connections=count, tokens=tokens, clients=_CLIENTS)
    tables = [
        [rows(stream, second * count, count, seed=client, client=client) for client in range(_CLIENTS)]
        for second in range(seconds)
    ]
    recorder = Recorder(RunDir.create(folder))
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    for second, of_clients in enumerate(tables):
        for client, table in enumerate(of_clients):
            recorder.add_requests(table, level=0, client=client)
        if second % 3 == 2:  # what tick() would do at this pace
            recorder.flush()
    recorder.close()
    wall_s, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    num_rows = seconds * count * _CLIENTS
    num_bytes = sum(path.stat().st_size for path in folder.rglob("*.parquet"))
    return {
        "tokens": tokens,
        "rows_per_s": num_rows / wall_s,
        "chunk_times_per_s": num_rows * tokens / wall_s,
        "rows_per_cpu_s": num_rows / cpu_s,
        "chunk_times_per_cpu_s": num_rows * tokens / cpu_s,
        "bytes_per_request": num_bytes / num_rows,
        "bytes_per_token": num_bytes / num_rows / tokens,
        "x_cluster": num_rows * tokens / cpu_s / (_CLIENTS * _TOKENS_PER_S),
    }


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one second of a cluster, once")
    parser.add_argument("--seconds", type=int, default=6, help="of the cluster's time")
    parser.add_argument("--readings", type=int, default=3)
    parser.add_argument("--json", type=Path, help="file for all figures")
    arguments = parser.parse_args()
    seconds, readings = (1, 1) if arguments.quick else (arguments.seconds, arguments.readings)
    results: list[dict[str, Any]] = []
    for tokens in (16, 128, 1_024):
        taken = []
        for _ in range(readings):
            with tempfile.TemporaryDirectory(prefix="distbench-store-") as name:
                taken.append(measure(seconds, tokens, Path(name) / "run"))
        medians = {key: median(reading[key] for reading in taken) for key in taken[0]}
        results.append({**medians, "spread": spread(reading["x_cluster"] for reading in taken)})
    print_table(
        list(results[0]), [[shown(value, _digits(key)) for key, value in row.items()] for row in results]
    )
    told = f"{_CLIENTS} clients at {_TOKENS_PER_S:,} tokens/s each; wanted: {_WANTED}x on one core"
    print(f"\nx_cluster: times what a cluster produces of {told}")
    save(arguments.json, {"results": results})


def _digits(key: str) -> int:
    return 1 if key in ("bytes_per_token", "x_cluster") else 2 if key == "spread" else 0


if __name__ == "__main__":
    main()
