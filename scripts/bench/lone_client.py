"""
One load client in this process, without a fleet: its connections, its parsing and its rows in Arrow, and nothing else of distbench.

The load has its thread, as everywhere; this program's main thread takes its events, as an actor of Ray would, and keeps the rows to
write them at the end. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import resource
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from distbench.client.client import LoadClient
from distbench.client.limits import raise_open_files
from distbench.client.messages import ClientSetup, Finished, Health, LevelStart, RequestSettings, Rows
from distbench.core.levels import level_from_plan
from distbench.core.plan import Plan
from distbench.core.plan_io import build_plan
from distbench.core.workload import build_workload
from distbench.units import s_to_ns
from distbench.wire.base import Timeouts, WireTarget

_EVENT_WAIT_S = 0.5


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True, help="base URL of the server")
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=128, help="output tokens of each request")
    parser.add_argument("--prompt-tokens", type=int, default=16)
    parser.add_argument("--position", type=int, default=0, help="place among the clients of the level")
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument(
        "--start-ns", type=int, default=None, help="start on CLOCK_MONOTONIC; default: in a second"
    )
    parser.add_argument(
        "--lead-s", type=float, default=1.0, help="time to connect in; counts without --start-ns"
    )
    parser.add_argument("--rows", type=Path, default=None, help="folder for the rows")
    return parser.parse_args()


def _plan(arguments: argparse.Namespace) -> Plan:
    values = {
        "urls": [arguments.url],
        "model": "mock-model",
        "connections": [arguments.connections],
        "requests": arguments.requests,
        "warmup": 0,
        "system-tokens": 0,
        "user-tokens": arguments.prompt_tokens,
        "output-tokens": arguments.tokens,
    }
    return build_plan("run", values, {})


def _setup(arguments: argparse.Namespace, plan: Plan) -> ClientSetup:
    request = RequestSettings(
        model="mock-model", endpoint="chat", stream=True, usage=True, ignore_eos=True, extra_body={}
    )
    target = WireTarget(
        url=f"{arguments.url}/v1/chat/completions", timeouts=Timeouts(first_token_s=600, idle_s=120)
    )
    return ClientSetup(
        client=arguments.position,
        targets=(target,),
        target_names=(arguments.url,),
        request=request,
        workload=build_workload(plan),
    )


def _follow(client: LoadClient, order: LevelStart) -> tuple[list[pa.Table], list[pa.Table]]:
    """Run the level; return its rows and its health samples."""
    rows, health = [], []
    handle = client.start_level(order)
    while True:
        for event in handle.events(_EVENT_WAIT_S):
            if isinstance(event, Rows):
                rows.append(event.table)
            elif isinstance(event, Health):
                health.append(event.table)
            elif isinstance(event, Finished):
                return rows, health


def main() -> None:
    """Run it."""
    arguments = _arguments()
    raise_open_files()
    plan = _plan(arguments)
    spec = level_from_plan(plan, level=1, connections=arguments.connections)
    client = LoadClient(arguments.position)
    client.start()
    client.setup(_setup(arguments, plan))
    start_ns = arguments.start_ns or time.monotonic_ns() + s_to_ns(arguments.lead_s)
    order = LevelStart(
        spec=dataclasses.replace(spec, warmup=0),
        position=arguments.position,
        num_clients=arguments.clients,
        epoch_ns=start_ns,
        start_ns=start_ns,
    )
    before_s = time.process_time()
    rows, health = _follow(client, order)
    used_s = time.process_time() - before_s
    client.close()
    table = pa.concat_tables(rows)
    if arguments.rows is not None:
        arguments.rows.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, arguments.rows / f"client-{arguments.position:04d}.parquet")
    samples = pa.concat_tables(health)
    outcomes = table["outcome"].to_pylist()
    told = {
        "epoch_ns": start_ns,
        "requests": len(outcomes),
        "ok": sum(outcome == "ok" for outcome in outcomes),
        "tokens": sum(value or 0 for value in table["completion_tokens"].to_pylist()),
        "cpu_s": used_s,
        "loop_cpu_max": float(pc.max(samples["loop_cpu_ratio"]).as_py()),
        "rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "user_stamps": sum(stamp == "user" for stamp in table["stamp"].to_pylist()),
    }
    print(json.dumps(told))
    sys.stdout.flush()
    os._exit(0)  # what Arrow and the loop would tidy up is no part of the measurement


if __name__ == "__main__":
    main()
