#!/usr/bin/env python3
"""
Does one client keep an open-loop schedule?

`distbench run` as shipped (one client under Ray) sends requests of one output token at fixed rates to the C mock server, which logs
when each one arrived; the server has a core of its own. Told for each rate: what arrived per second by the server's log, how late
requests were sent (send lag), and what was not answered. A schedule is kept where the rate that arrived is within 1 % of the rate
asked for.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from distbench.store.reader import open_run
from scripts.bench.processes import Cores, has_compiler, pin, run
from scripts.bench.tables import print_table, save, shown
from tests.support import cmock

TOLERANCE = 0.01
CONNECTIONS = 512
LIMIT_S = 180.0


def measure(rate: int, seconds: float, pattern: str, *, realtime: bool) -> dict[str, Any]:
    """Offer one rate and return what came of it."""
    with tempfile.TemporaryDirectory(prefix="distbench-open-loop-") as name:
        folder = Path(name)
        with cmock.MockServer(cmock.build("mockserver"), folder) as server:
            pin(server.pid, Cores.of_this_machine().server, realtime=realtime)
            command = [
                str(Path(sys.executable).with_name("distbench")), "run", server.url, "--model", "mock-model", "--pattern", pattern,
                "--rate", str(rate), "--connections", str(CONNECTIONS), "--clients", "1", "--requests", str(round(rate * seconds)),
                "--warmup", "0", "--system-tokens", "0", "--user-tokens", "8", "--output-tokens", "1", "--quiet",
                "--output", str(folder / "run"),
            ]  # fmt: skip
            run(command, realtime=realtime, limit_s=LIMIT_S)
        arrived = np.sort([request.read_ns for request in server.requests()])
        columns = ["outcome", "scheduled_ns", "first_sent_ns"]
        rows = open_run(folder / "run").requests(columns=columns).to_pandas()
    sent = rows[rows.first_sent_ns.notna()]
    arrived = arrived[-len(sent) :]  # before them came what the command asks beforehand
    lags_ms = (sent.first_sent_ns - sent.scheduled_ns).to_numpy(float) / 1e6
    asked = (len(sent) - 1) / ((sent.scheduled_ns.max() - sent.scheduled_ns.min()) / 1e9)
    got = (len(arrived) - 1) / ((arrived[-1] - arrived[0]) / 1e9)
    p50, p99, worst = np.quantile(lags_ms, (0.5, 0.99, 1.0)).tolist()
    off = float(got / asked - 1)
    not_ok = len(rows) - int((rows.outcome == "ok").sum())
    return {
        "asked_per_s": float(asked),
        "arrived_per_s": float(got),
        "off_percent": 100 * off,
        "lag_p50_ms": p50,
        "lag_p99_ms": p99,
        "lag_max_ms": worst,
        "not_ok": not_ok,
        "kept": abs(off) <= TOLERANCE and not not_ok,
    }


def main() -> int:
    """Print the table; 2 without a compiler."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="200 requests/s for two seconds")
    parser.add_argument("--rates", default="500,1000,2000", help="requests/s, separated by commas")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each rate")
    parser.add_argument("--pattern", choices=("constant", "poisson"), default="constant")
    parser.add_argument(
        "--realtime", action="store_true", help="run server and client ahead of all else (needs root)"
    )
    parser.add_argument("--json", type=Path, help="file for all figures")
    options = parser.parse_args()
    if not has_compiler():
        print("open_loop: needs a C compiler (cc) for the mock server")
        return 2
    rates, seconds = ("200", 2.0) if options.quick else (options.rates, options.seconds)
    results = [
        measure(int(rate), seconds, options.pattern, realtime=options.realtime) for rate in rates.split(",")
    ]
    print_table(list(results[0]), [[shown(value) for value in row.values()] for row in results])
    save(options.json, {"results": results})
    return 0


if __name__ == "__main__":
    sys.exit(main())
