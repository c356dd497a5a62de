#!/usr/bin/env python3
"""
What a streamed token and a request cost the client, and how far its stamps lie from the truth.

In turn and several times over: the C floor, our connection alone, `distbench run` as shipped, plain clients on aiohttp and httpx, and
any other tool given as a command. Each is run twice against the C mock server, with M and with 3M requests: the difference of
the processor times over the difference of the tokens is the cost of a token, free of starting up. The server has one core, the
client with all its processes another. docs/performance.md explains how to read the figures.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scripts.bench.contenders import CLIENT, Contender, Load, baseline, connection, floor, peer, shipped
from scripts.bench.processes import BenchError, Cores, Usage, has_compiler, pin, run
from scripts.bench.tables import median, print_table, ratio, save, shown, spread
from scripts.bench.truth import server_view, stamp_errors
from tests.support import cmock

_TTFT_MS = 50.0
_LONGER = 3
_MEASURES = (
    "client_us_per_token",
    "us_per_token",
    "us_per_request",
    "tokens_per_s",
    "in_flight_ratio",
    "client_rss_mb",
    "rss_mb",
    "stamp_p50_ms",
    "stamp_p99_ms",
    "bundled_ratio",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bench:
    """
    How to measure.

    Attributes:
        cores: Where server and client run.
        itl_ms: The server's step.
        limit_s: No run takes longer.
        realtime: Server and clients run ahead of everything else on the machine.
    """

    cores: Cores
    itl_ms: float
    limit_s: float
    realtime: bool


def measure(bench: Bench, contender: Contender, load: Load) -> dict[str, Any]:
    """
    Measure a contender once: a short and a long run.

    Raises:
        BenchError: it failed, or took too long.
    """
    short, _, short_tokens = _run_once(bench, contender, load)
    longer = dataclasses.replace(load, requests=_LONGER * load.requests)
    long, told, long_tokens = _run_once(bench, contender, longer)
    tokens = long_tokens - short_tokens
    if tokens <= 0:
        raise BenchError(f"{contender.name}: the longer run brought no more tokens")
    cpu_s = long.total_cpu_s - short.total_cpu_s
    client_cpu_s = long.cpu_s.get(CLIENT, 0.0) - short.cpu_s.get(CLIENT, 0.0)
    return {
        **told,
        "client_us_per_token": client_cpu_s / tokens * 1e6,
        "us_per_token": cpu_s / tokens * 1e6,
        "us_per_request": cpu_s / (longer.requests - load.requests) * 1e6,
        "cpu_s": dict(long.cpu_s),
        "client_rss_mb": long.rss_bytes.get(CLIENT, 0) / 2**20,
        "rss_mb": sum(long.rss_bytes.values()) / 2**20,
    }


def _run_once(bench: Bench, contender: Contender, load: Load) -> tuple[Usage, dict[str, Any], float]:
    """Return what it used, what the truth log says of it, and the tokens that the server sent."""
    with tempfile.TemporaryDirectory(prefix="distbench-cost-") as name:
        folder = Path(name)
        server = cmock.MockServer(cmock.build("mockserver"), folder, ttft_ms=_TTFT_MS, itl_ms=bench.itl_ms)
        with server:
            pin(server.pid, bench.cores.server, realtime=bench.realtime)
            usage = run(
                contender.command(load, server.port, folder),
                core=bench.cores.client,
                realtime=bench.realtime,
                role_of=contender.role_of,
                limit_s=bench.limit_s,
            )
        return usage, _truth(contender, load, server, folder, usage.output), server.counters["tokens"]


def _truth(
    contender: Contender, load: Load, server: cmock.MockServer, folder: Path, output: str
) -> dict[str, Any]:
    requests = server.requests()
    seen = server_view(requests, load.connections)
    stamps = contender.stamps(folder, output) if contender.stamps else {}
    errors = stamp_errors({request.request_id: request for request in requests}, stamps)
    return {
        "tokens_per_s": None if seen is None else seen.tokens_per_s,
        "in_flight_ratio": None if seen is None else seen.in_flight / load.connections,
        "stamp_p50_ms": None if errors is None else errors.p50_ms,
        "stamp_p99_ms": None if errors is None else errors.p99_ms,
        "bundled_ratio": None if errors is None else errors.bundled_ratio,
    }


def compare(bench: Bench, contenders: Sequence[Contender], load: Load, pairs: int) -> list[dict[str, Any]]:
    """Measure all contenders in turn, several times over; return the readings and medians of each, the first being the base."""
    readings: dict[str, list[dict[str, Any]]] = {contender.name: [] for contender in contenders}
    faults: dict[str, str] = {}
    for number in range(pairs):
        for contender in contenders:
            if contender.name in faults:
                continue
            try:
                reading = measure(bench, contender, load)
            except BenchError as error:
                faults[contender.name] = str(error)
                print(f"{contender.name}: left out, {error}")
                continue
            readings[contender.name].append(reading)
            print(
                f"  {number + 1}/{pairs} {contender.name}: {shown(reading['client_us_per_token'])} us/token",
                flush=True,
            )
    results = []
    base: float | None = None
    for name, taken in readings.items():
        medians = {measure: median(reading[measure] for reading in taken) for measure in _MEASURES}
        base = medians["us_per_token"] if base is None else base
        results.append(
            {
                "name": name,
                **dataclasses.asdict(load),
                **medians,
                "client_x_floor": ratio(medians["client_us_per_token"], base),
                "x_floor": ratio(medians["us_per_token"], base),
                "spread": spread(reading["client_us_per_token"] for reading in taken),
                "readings": taken,
                "fault": faults.get(name),
            }
        )
    return results


_COLUMNS = {
    "client": "name",
    "us/token": "client_us_per_token",
    "x floor": "client_x_floor",
    "+-": "spread",
    "whole tree x": "x_floor",
    "us/request": "us_per_request",
    "tokens/s": "tokens_per_s",
    "in flight": "in_flight_ratio",
    "RSS MB": "client_rss_mb",
    "tree MB": "rss_mb",
    "stamp p50 ms": "stamp_p50_ms",
    "p99 ms": "stamp_p99_ms",
    "bundled": "bundled_ratio",
}
_DIGITS = {
    "us_per_request": 0,
    "tokens_per_s": 0,
    "client_rss_mb": 0,
    "rss_mb": 0,
    "stamp_p50_ms": 3,
    "stamp_p99_ms": 3,
}
_DIGITS |= {"in_flight_ratio": 3, "bundled_ratio": 3}


def show(load: Load, bench: Bench, results: Sequence[dict[str, Any]]) -> None:
    """Print the table of one load."""
    print(
        f"\n{load.connections} connections, {load.tokens} output tokens, a token each {bench.itl_ms:g} ms\n"
    )
    rows = [[shown(result[key], _DIGITS.get(key, 2)) for key in _COLUMNS.values()] for result in results]
    print_table(list(_COLUMNS), rows)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="small loads: tries everything out, measures little"
    )
    parser.add_argument("--pairs", type=int, default=3, help="readings of each contender and load")
    parser.add_argument("--connections", default="256,1024", help="loads, separated by commas")
    parser.add_argument(
        "--tokens", type=int, default=128, help="output tokens of the loads for the cost of a token"
    )
    parser.add_argument(
        "--request-tokens", type=int, default=16, help="and of the load for the cost of a request; 0: none"
    )
    parser.add_argument("--waves", type=float, default=2, help="M, in requests a connection")
    parser.add_argument("--itl-ms", type=float, default=20.0, help="the server's step")
    parser.add_argument(
        "--only", default="", help="contenders whose names hold one of these words, separated by commas"
    )
    parser.add_argument(
        "--peer", action="append", default=[], metavar="NAME=COMMAND", help="another tool; repeatable"
    )
    parser.add_argument(
        "--realtime", action="store_true", help="run server and clients ahead of all else (needs root)"
    )
    parser.add_argument("--limit", type=float, default=600.0, help="seconds after which a run is given up")
    parser.add_argument("--json", type=Path, help="file for all readings")
    return parser.parse_args()


def _contenders(arguments: argparse.Namespace) -> list[Contender]:
    every = [
        floor(),
        connection(),
        connection(compiled=False),
        shipped(),
        baseline("aiohttp"),
        baseline("httpx"),
    ]
    every += [peer(*named.split("=", 1)) for named in arguments.peer]
    found = [contender for contender in every if contender is not None]
    words = [word for word in arguments.only.split(",") if word]
    return [each for each in found if not words or any(word in each.name for word in words)]


def _loads(arguments: argparse.Namespace) -> list[Load]:
    if arguments.quick:
        return [Load(connections=16, requests=32, tokens=16)]
    counts = [int(count) for count in arguments.connections.split(",")]
    loads = [
        Load(connections=count, requests=round(arguments.waves * count), tokens=arguments.tokens)
        for count in counts
    ]
    if arguments.request_tokens:
        # Short answers come to more requests in the same time.
        waves = arguments.waves * arguments.tokens / arguments.request_tokens / 2
        loads.append(
            Load(connections=counts[0], requests=round(waves * counts[0]), tokens=arguments.request_tokens)
        )
    return loads


def main() -> None:
    """Run it."""
    arguments = _arguments()
    if not has_compiler():
        raise SystemExit(
            "there is no C compiler (cc) here: without the mock server and the floor nothing can be measured"
        )
    bench = Bench(
        cores=Cores.of_this_machine(),
        itl_ms=2.0 if arguments.quick else arguments.itl_ms,
        limit_s=arguments.limit,
        realtime=arguments.realtime,
    )
    print(f"load of this machine before the start: {os.getloadavg()[0]:.1f}")
    results = []
    for load in _loads(arguments):
        found = compare(bench, _contenders(arguments), load, 1 if arguments.quick else arguments.pairs)
        show(load, bench, found)
        results += found
    save(arguments.json, {"itl_ms": bench.itl_ms, "results": results})


if __name__ == "__main__":
    main()
