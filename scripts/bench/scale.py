#!/usr/bin/env python3
"""
How far one client goes, and whether more of them go further.

ladder   64 to 10,000 connections on one client process, about 10,000 tokens/s each time: errors, in flight, memory, stamps.
clients  1, 2 and 4 clients under Ray, each with connections of its own and held to a tenth of a core, so that none can fill the server:
         the throughput must grow with them. Then the same connections shared among them, without the limit, where the server sets
         the pace: all must agree.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from scripts.bench.contenders import CLIENT, Load, connection, shipped
from scripts.bench.processes import Cores, has_compiler, pin, run
from scripts.bench.ray_head import ray_head
from scripts.bench.tables import median, print_table, ratio, save, shown
from scripts.bench.throttle import Throttle, throttle
from scripts.bench.truth import server_view, stamp_errors
from tests.support import cmock

_LADDER = (64, 256, 1_024, 4_096, 10_000)
_LADDER_TOKENS_PER_S = 10_000
_LIMIT_S = 300.0
_FOLLOW_EVERY_S = 0.2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bench:
    """Where server and clients run, and whether they run ahead of all else."""

    cores: Cores
    realtime: bool


@contextlib.contextmanager
def _server(bench: Bench, folder: Path, *, ttft_ms: float, itl_ms: float) -> Iterator[cmock.MockServer]:
    server = cmock.MockServer(cmock.build("mockserver"), folder, ttft_ms=ttft_ms, itl_ms=itl_ms)
    with server:
        pin(server.pid, bench.cores.server, realtime=bench.realtime)
        yield server


def one_client(bench: Bench, connections: int, tokens: int) -> dict[str, Any]:
    """Hold so many connections with one client process; return what came of it."""
    contender = connection()
    load = Load(connections=connections, requests=3 * connections, tokens=tokens)
    itl_ms = 1e3 * connections / _LADDER_TOKENS_PER_S
    with tempfile.TemporaryDirectory(prefix="distbench-scale-") as name:
        folder = Path(name)
        with _server(bench, folder, ttft_ms=itl_ms, itl_ms=itl_ms) as server:
            command = [
                *contender.command(load, server.port, folder),
                "--lead-s",
                str(1 + connections / 1_000),
            ]
            usage = run(command, core=bench.cores.client, realtime=bench.realtime)
        told = json.loads(usage.output)
        requests = server.requests()
        seen = server_view(requests, connections)
        stamps = contender.stamps(folder, usage.output) if contender.stamps else {}
        errors = stamp_errors({request.request_id: request for request in requests}, stamps)
    return {
        "connections": connections,
        "errors": told["requests"] - told["ok"],
        "in_flight": None if seen is None else seen.in_flight,
        "in_flight_ratio": None if seen is None else seen.in_flight / connections,
        "tokens_per_s": None if seen is None else seen.tokens_per_s,
        "loop_cpu_max": told["loop_cpu_max"],
        "rss_mb": told["rss_bytes"] / 2**20,
        "stamp_p99_ms": None if errors is None else errors.p99_ms,
        "bundled_ratio": None if errors is None else errors.bundled_ratio,
    }


def ladder(bench: Bench, counts: tuple[int, ...], tokens: int) -> list[dict[str, Any]]:
    """Climb it and print it."""
    rows = []
    for count in counts:
        rows.append(one_client(bench, count, tokens))
        print(f"  {count} connections: {rows[-1]['errors']} errors", flush=True)
    digits = {"in_flight": 1, "in_flight_ratio": 4, "tokens_per_s": 0, "rss_mb": 0, "stamp_p99_ms": 3}
    print("\none client process\n")
    print_table(
        list(rows[0]), [[shown(value, digits.get(key, 3)) for key, value in row.items()] for row in rows]
    )
    return rows


def clients(
    bench: Bench, numbers: tuple[int, ...], load: Load, *, itl_ms: float, share: float | None, pairs: int
) -> list[dict[str, Any]]:
    """
    Run different numbers of clients in turn.

    Args:
        bench: Where.
        numbers: Of clients.
        load: Of all clients together where they are free, of each where they are held. A client that is starved reads what its
            connections have gathered, so with fewer connections each token costs it more: shared among more clients, the same
            connections would be another load.
        itl_ms: The server's step.
        share: Of a core that each client gets; None: no limit.
        pairs: Readings of each number.

    Returns:
        A row for each number: the median of the throughputs, and each against that of the first number.
    """
    readings: dict[int, list[float | None]] = {number: [] for number in numbers}
    with ray_head(num_cpus=max(numbers)) as address:
        for _ in range(pairs):
            for number in numbers:
                total = load if share is None else _times(number, load)
                rate = _throughput(bench, total, number, address, itl_ms=itl_ms, share=share)
                readings[number].append(rate)
                print(f"  {number} clients: {shown(rate, 0)} tokens/s", flush=True)
    medians = {number: median(rates) for number, rates in readings.items()}
    rows = [
        {
            "clients": number,
            "tokens_per_s": medians[number],
            "ratio": ratio(medians[number], medians[numbers[0]]),
        }
        for number in numbers
    ]
    held = (
        "over all clients, not limited" if share is None else f"a client, each held to {share:.0%} of a core"
    )
    print(f"\n{load.connections} connections {held}\n")
    print_table(
        list(rows[0]),
        [[shown(value, 0 if key != "ratio" else 2) for key, value in row.items()] for row in rows],
    )
    return rows


def _times(number: int, load: Load) -> Load:
    return dataclasses.replace(load, connections=number * load.connections, requests=number * load.requests)


def _throughput(
    bench: Bench, load: Load, number: int, address: str, *, itl_ms: float, share: float | None
) -> float | None:
    with tempfile.TemporaryDirectory(prefix="distbench-scale-") as name:
        folder = Path(name)
        with _server(bench, folder, ttft_ms=itl_ms, itl_ms=itl_ms) as server:
            command = shipped().command(load, server.port, folder)
            command += ["--clients", str(number), "--ray-address", address, "--no-metrics"]
            with _held(share):
                run(command, limit_s=_LIMIT_S)
        seen = server_view(server.requests(), load.connections)
    return None if seen is None else seen.tokens_per_s


@contextlib.contextmanager
def _held(share: float | None) -> Iterator[None]:
    """Hold every client process that appears below this one to a share of a core."""
    if share is None:
        yield
        return
    ended = threading.Event()
    follower = threading.Thread(target=_hold_new_ones, args=(share, ended), daemon=True)
    follower.start()
    try:
        yield
    finally:
        ended.set()
        follower.join()


def _hold_new_ones(share: float, ended: threading.Event) -> None:
    role_of = shipped().role_of
    limits: dict[int, Throttle] = {}
    while not ended.wait(_FOLLOW_EVERY_S):
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if process.pid not in limits and role_of(" ".join(process.cmdline())) == CLIENT:
                    limits[process.pid] = throttle(share)
                    limits[process.pid].hold(process.pid)
    for limit in limits.values():
        limit.release()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", nargs="?", choices=("ladder", "clients", "all"), default="all")
    parser.add_argument(
        "--quick", action="store_true", help="small loads: tries everything out, measures little"
    )
    parser.add_argument("--pairs", type=int, default=3, help="readings of each number of clients")
    parser.add_argument("--share", type=float, default=0.1, help="of a core for each held client")
    parser.add_argument(
        "--realtime", action="store_true", help="run server and one client ahead of all else (needs root)"
    )
    parser.add_argument("--json", type=Path, help="file for all figures")
    return parser.parse_args()


def main() -> None:
    """Run it."""
    arguments = _arguments()
    if not has_compiler():
        raise SystemExit("there is no C compiler (cc) here: without the mock server nothing can be measured")
    bench = Bench(cores=Cores.of_this_machine(), realtime=arguments.realtime)
    quick = arguments.quick
    result: dict[str, Any] = {}
    if arguments.part in ("ladder", "all"):
        result["ladder"] = ladder(bench, (16, 64) if quick else _LADDER, 8 if quick else 32)
    if arguments.part in ("clients", "all"):
        numbers = (1, 2) if quick else (1, 2, 4)
        pairs = 1 if quick else arguments.pairs
        # Short answers: a request costs the client more than its tokens, which come in bundles to one that is starved.
        short = Load(connections=64, requests=400 if quick else 5_000, tokens=8)
        result["held"] = clients(bench, numbers, short, itl_ms=1, share=arguments.share, pairs=pairs)
        paced = Load(connections=64, requests=256 if quick else 1_024, tokens=16 if quick else 128)
        result["free"] = clients(bench, numbers, paced, itl_ms=10, share=None, pairs=pairs)
    save(arguments.json, result)


if __name__ == "__main__":
    main()
