#!/usr/bin/env python3
"""
Does one client keep an open-loop schedule?

`distbench run` as shipped (one client under Ray) sends requests of one output token at fixed rates to the C mock server, which logs
when each one arrived; the server has a core of its own. Prints for each rate what arrived per second by the server's log, how late requests were sent (send lag) and
what was dropped. The schedule is kept where the rate that arrived is within 1 % of the rate asked for.

    scripts/bench/open_loop.py [--rates 500,1000,2000] [--seconds 10] [--pattern constant|poisson] [--realtime]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from distbench.store.reader import open_run  # noqa: E402
from scripts.bench.processes import Cores, has_compiler, pin, run  # noqa: E402
from tests.support import cmock  # noqa: E402

TOLERANCE = 0.01
CONNECTIONS = 512
LIMIT_S = 180.0


def keep(rate: int, seconds: float, pattern: str, cores: Cores, *, realtime: bool) -> bool:
    """Run one rate, print its line, and return whether the schedule was kept."""
    with tempfile.TemporaryDirectory(prefix="distbench-open-loop-") as name:
        folder = Path(name)
        with cmock.MockServer(cmock.build("mockserver"), folder) as server:
            pin(server.pid, cores.server, realtime=realtime)
            command = [
                str(Path(sys.executable).with_name("distbench")), "run", server.url, "--model", "mock-model", "--pattern", pattern, "--rate", str(rate),
                "--connections", str(CONNECTIONS), "--clients", "1", "--requests", str(round(rate * seconds)), "--warmup", "0",
                "--system-tokens", "0", "--user-tokens", "8", "--output-tokens", "1", "--quiet", "--output", str(folder / "run"),
            ]  # fmt: skip
            run(command, realtime=realtime, limit_s=LIMIT_S)
        arrived = np.sort([request.read_ns for request in server.requests()])
        found = open_run(folder / "run")
        rows = found.requests(columns=["outcome", "scheduled_ns", "first_sent_ns"]).to_pandas()
    sent = rows[rows.first_sent_ns.notna()]
    arrived = arrived[-len(sent) :]  # before them came what the command asks beforehand
    lags_ms = (sent.first_sent_ns - sent.scheduled_ns).to_numpy(float) / 1e6
    asked = (len(sent) - 1) / ((sent.scheduled_ns.max() - sent.scheduled_ns.min()) / 1e9)
    got = (len(arrived) - 1) / ((arrived[-1] - arrived[0]) / 1e9)
    p50, p99, worst = np.quantile(lags_ms, (0.5, 0.99, 1.0))
    off = got / asked - 1
    not_ok = len(rows) - int((rows.outcome == "ok").sum())
    print(
        f"{asked:>8.0f} {got:>8.0f} {off:>+7.2%} {p50:>8.2f} {p99:>8.2f} {worst:>8.1f} {not_ok:>6}",
        flush=True,
    )
    return abs(off) <= TOLERANCE and not not_ok


def main() -> int:
    """Print the table; 1 where a schedule was not kept."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rates", default="500,1000,2000", help="requests/s, separated by commas")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each rate")
    parser.add_argument("--pattern", choices=("constant", "poisson"), default="constant")
    parser.add_argument(
        "--realtime", action="store_true", help="run server and client ahead of all else (needs root)"
    )
    options = parser.parse_args()
    if not has_compiler():
        print("open_loop: needs a C compiler (cc) for the mock server")
        return 2
    print(f"{'asked/s':>8} {'got/s':>8} {'off':>7} {'lag p50':>8} {'p99 ms':>8} {'max ms':>8} {'not ok':>6}")
    cores = Cores.of_this_machine()
    kept = [
        keep(int(rate), options.seconds, options.pattern, cores, realtime=options.realtime)
        for rate in options.rates.split(",")
    ]
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
