#!/usr/bin/env python3
"""
What the driver of a large cluster has to bear, measured with clients that send nothing to any server.

Synthetic clients are Ray actors of their own processes that yield what real ones yield: rows of finished requests once per second,
a health sample, counters twice per second. The driver takes and records them by the shipped code. From its processor time at
several numbers of clients and token rates follows what a client costs it, and what a token; from that, where its limit lies.
docs/scale.md draws the conclusions.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import logging
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from distbench.client.messages import ClientEvent, Finished, Health, Progress, Rows
from distbench.fleet.ray_level import RayLevelRun
from distbench.store.recorder import Recorder
from distbench.store.rundir import RunDir
from distbench.store.schema import CLIENTS
from scripts.bench.ray_head import ray_head
from scripts.bench.synthetic_rows import Stream, rows
from scripts.bench.tables import print_table, save, shown

_TOKENS = 128
_PREDICTED = (16, 100, 1_000)
_RATE = 50_000
_ACTOR_CPUS = 0.001
_SILENCE_LIMIT_S = 60.0
_UNTAKEN_ITEMS = 8
_BUSY_SHARE = 0.8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Point:
    """
    A cluster to try.

    Attributes:
        clients: How many.
        tokens_per_s: Of each client; 0: it only says that it lives.
    """

    clients: int
    tokens_per_s: int


class SyntheticClient:
    """Yields what a client of a level would, from rows made beforehand; wrapped late, as the real one."""

    def __init__(self, client: int) -> None:
        self._client = client

    async def run_level(
        self, tokens_per_s: int, seconds: int, start_s: float
    ) -> AsyncIterator[list[ClientEvent]]:
        """Speak for so many seconds, from a time on this machine's monotonic clock."""
        table = None
        if count := tokens_per_s // _TOKENS:
            stream = Stream(connections=count, tokens=_TOKENS)
            table = rows(stream, 0, count, seed=self._client, client=self._client)
        for beat in range(2 * seconds):
            await asyncio.sleep(max(0.0, start_s + (beat + 1) / 2 - time.monotonic()))
            yield [*self._second(table), self._progress()] if beat % 2 else [self._progress()]
        yield [self._finished()]

    async def ready(self) -> bool:
        """Answer once the process is up."""
        return True

    def _second(self, table: pa.Table | None) -> list[ClientEvent]:
        sample = {field.name: None if field.nullable else 0 for field in CLIENTS} | {"client": self._client}
        health = Health(client=self._client, table=pa.Table.from_pylist([sample], CLIENTS))
        return [health] if table is None else [Rows(client=self._client, table=table), health]

    def _progress(self) -> Progress:
        counts = (
            "connected",
            "in_flight",
            "waiting_parse",
            "warmup_done",
            "sent",
            "ok",
            "failed",
            "cut",
            "dropped",
        )
        counters: dict[str, Any] = dict.fromkeys(counts, 0)
        return Progress(
            client=self._client, output_tokens=0, last_error=None, at_ns=time.monotonic_ns(), **counters
        )

    def _finished(self) -> Finished:
        return Finished(
            client=self._client, measured_start_ns=0, pool_empty_ns=0, reason="complete", start_delay_ns=0
        )


def measure(point: Point, actors: list[Any], seconds: int) -> dict[str, Any]:
    """Run a level of synthetic clients into a recorder; return what this process, the driver, used for it."""
    start_s = time.monotonic() + 1.0
    streams = {
        client: actor.run_level.options(
            num_returns="streaming", _generator_backpressure_num_objects=_UNTAKEN_ITEMS
        ).remote(point.tokens_per_s, seconds, start_s)
        for client, actor in enumerate(actors[: point.clients])
    }
    lost: list[str] = []
    level = RayLevelRun(
        streams,
        dict(enumerate(actors)),
        start_ns=round(start_s * 1e9),
        on_lost=lambda _, reason: lost.append(reason),
        silence_limit_s=_SILENCE_LIMIT_S,
    )
    with tempfile.TemporaryDirectory(prefix="distbench-cluster-") as name:
        recorder = Recorder(RunDir.create(Path(name) / "run"))
        began_s, began_cpu_s = time.monotonic(), time.process_time()
        num_bytes, num_rows = _record(level, recorder)
        recorder.close()
        wall_s, cpu_s = time.monotonic() - began_s, time.process_time() - began_cpu_s
        on_disk = sum(path.stat().st_size for path in Path(name).rglob("*.parquet"))
    return {
        "clients": point.clients,
        "tokens_per_s": point.clients * point.tokens_per_s,
        "driver_cpu_share": cpu_s / seconds,
        "late_s": wall_s - seconds - 1.0,
        "rows": num_rows,
        "sent_bytes_per_token": num_bytes / (num_rows * _TOKENS) if num_rows else None,
        "disk_bytes_per_token": on_disk / (num_rows * _TOKENS) if num_rows else None,
        "lost": len(lost),
    }


def _record(level: RayLevelRun, recorder: Recorder) -> tuple[int, int]:
    """Take and record everything, as the experiment does; return bytes and rows of the requests."""
    num_bytes = num_rows = 0
    while not level.finished():
        for event in level.events(0.1):
            if isinstance(event, Rows):
                recorder.add_requests(event.table, level=0, client=event.client)
                num_bytes += event.table.nbytes
                num_rows += event.table.num_rows
            elif isinstance(event, Health):
                recorder.add_clients(event.table, client=event.client)
        recorder.tick()
    return num_bytes, num_rows


def fit(measured: list[dict[str, Any]]) -> npt.NDArray[np.float64]:
    """Return the shares of a core that the driver spends at rest, per client, and per 100k tokens/s: least squares, none below 0."""
    from scipy.optimize import nnls

    shape = np.array([[1.0, row["clients"], row["tokens_per_s"] / 1e5] for row in measured])
    shares = np.array([row["driver_cpu_share"] for row in measured])
    solved: npt.NDArray[np.float64] = nnls(shape, shares)[0]
    return solved


def predict(model: npt.NDArray[np.float64], measured: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what larger clusters would ask of the driver, each client at the same rate."""
    with_rows = [row for row in measured if row["rows"]]
    sent, disk = (
        max(row[key] for row in with_rows) for key in ("sent_bytes_per_token", "disk_bytes_per_token")
    )
    return [
        {
            "clients": clients,
            "tokens_per_s": clients * _RATE,
            "driver_cpu_share": float(model @ [1.0, clients, clients * _RATE / 1e5]),
            "network_mb_s": clients * _RATE * sent / 1e6,
            "disk_mb_s": clients * _RATE * disk / 1e6,
        }
        for clients in _PREDICTED
    ]


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one and two clients, two seconds each")
    parser.add_argument("--clients", default="1,4,8,16", help="numbers of clients, separated by commas")
    parser.add_argument("--seconds", type=int, default=8, help="of each level")
    parser.add_argument("--json", type=Path, help="file for all figures")
    arguments = parser.parse_args()
    numbers = [1, 2] if arguments.quick else [int(number) for number in arguments.clients.split(",")]
    seconds = 2 if arguments.quick else arguments.seconds
    import ray

    measured = []
    with ray_head(num_cpus=2) as address:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        wrapped: Any = ray.remote(SyntheticClient)
        actors = [wrapped.options(num_cpus=_ACTOR_CPUS).remote(client) for client in range(max(numbers))]
        try:
            ray.get([actor.ready.remote() for actor in actors])
            for number in numbers:
                for rate in (0, _RATE // 5, _RATE):
                    measured.append(measure(Point(clients=number, tokens_per_s=rate), actors, seconds))
        finally:
            ray.shutdown()
    print_table(list(measured[0]), [[shown(value, 3) for value in row.values()] for row in measured])
    model = fit(measured)
    print(
        f"\nthe driver needs {model[0]:.3f} cores, {model[1]:.5f} a client and {model[2]:.4f} a 100,000 tokens/s"
    )
    per_client = model[1] + model[2] * _RATE / 1e5
    limit = (_BUSY_SHARE - model[0]) / per_client if per_client > 0 else float("inf")
    print(f"clients at {_RATE:,} tokens/s that fill it to {_BUSY_SHARE:.0%}: {limit:,.0f}\n")
    predicted = predict(model, measured)
    print_table(list(predicted[0]), [[shown(value, 2) for value in row.values()] for row in predicted])
    save(
        arguments.json,
        {"measured": measured, "model": model.tolist(), "limit": limit, "predicted": predicted},
    )


if __name__ == "__main__":
    main()
