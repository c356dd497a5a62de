"""
What needs the rows of all requests: distributions per level, shares per target, health per client (floor F4).

Rows are read level by level and only the columns that are needed, so that a run of any length fits into memory.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distbench.analysis.latency import LATENCY_COLUMNS, request_latencies
from distbench.analysis.reconcile import CLIENT_COLUMNS, ClientSums, client_sums
from distbench.report.timeline import rounded
from distbench.store.reader import RunData
from distbench.units import NS_PER_S

# Cumulative share, dense in the upper tail, where latencies differ.
SHARES = (*(i / 100 for i in range(0, 99, 2)), 0.99, 0.995, 0.999, 1.0)
# Chunk times are most of the bytes and are not needed here.
_COLUMNS = tuple(sorted({"phase", "target", *LATENCY_COLUMNS, *CLIENT_COLUMNS} - {"chunk_us"}))


@dataclasses.dataclass(frozen=True, slots=True)
class Spread:
    """
    Figures over single requests.

    Attributes:
        quantiles: Level -> ttft | tpot | e2e -> seconds at each of SHARES; a latency that no request has is left out.
        sums: Level -> what the clients counted, warm-up included.
        targets: One mapping per target: target, ok, failed, other, output_tokens, share (of all measured requests, 0..1).
    """

    quantiles: dict[int, dict[str, list[float]]]
    sums: dict[int, ClientSums]
    targets: list[dict[str, Any]]


def make_spread(run: RunData, rows: list[dict[str, Any]]) -> Spread:
    """
    Read the requests of a run once.

    Args:
        run: The run.
        rows: Rows of levels.parquet, for the windows.
    """
    windows = {row["level"]: (row["window_start_ns"], row["window_end_ns"]) for row in rows}
    quantiles: dict[int, dict[str, list[float]]] = {}
    sums: dict[int, ClientSums] = {}
    targets: dict[str, dict[str, Any]] = {}
    for level in run.level_numbers():
        table = run.requests(level, _COLUMNS)
        sums[level] = client_sums(table)
        table = table.filter(pc.field("phase") == "measured")
        _count_targets(table, targets)
        quantiles[level] = _quantiles(table, windows.get(level, (None, None)))
    total = sum(t["ok"] + t["failed"] + t["other"] for t in targets.values())
    for target in targets.values():
        target["share"] = (target["ok"] + target["failed"] + target["other"]) / total if total else None
    return Spread(quantiles, sums, sorted(targets.values(), key=lambda t: str(t["target"])))


def latencies(
    table: pa.Table, window: tuple[int | None, int | None]
) -> Mapping[str, npt.NDArray[np.float64]]:
    """
    Return the latencies of the answered requests that were sent inside a window, in seconds, those that did not happen left out.

    Args:
        table: Requests with the columns LATENCY_COLUMNS.
        window: First and last ns since the epoch; None: no bound.
    """
    lo, hi = window
    if lo is not None and hi is not None:
        table = table.filter((pc.field("sent_ns") >= lo) & (pc.field("sent_ns") < hi))
    found = request_latencies(table)
    return {name: _known(getattr(found, name)) for name in ("ttft", "tpot", "e2e")}


def _known(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return values[np.isfinite(values)]


def _quantiles(table: pa.Table, window: tuple[int | None, int | None]) -> dict[str, list[float]]:
    return {
        name: [rounded(float(v)) for v in np.quantile(values, SHARES)]
        for name, values in latencies(table, window).items()
        if len(values)
    }


def _count_targets(table: pa.Table, targets: dict[str, dict[str, Any]]) -> None:
    grouped = table.group_by(["target", "outcome"]).aggregate(
        [("phase", "count"), ("completion_tokens", "sum")]
    )
    for row in grouped.to_pylist():
        empty = {"target": row["target"], "ok": 0, "failed": 0, "other": 0, "output_tokens": 0}
        target = targets.setdefault(row["target"], empty)
        target[row["outcome"] if row["outcome"] in ("ok", "failed") else "other"] += row["phase_count"]
        target["output_tokens"] += row["completion_tokens_sum"] or 0


def client_health(clients: pa.Table, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """
    Sum up the samples of each client inside the windows of the levels.

    Args:
        clients: Rows in the schema CLIENTS.
        rows: Rows of levels.parquet; a level without a window counts whole.

    Returns:
        One mapping per client: client, requests, output_tokens, cpu_max, lag_p99_s, turnaround_p99_s (worst samples), in_flight_ratio
        (time-weighted in flight / asked). The busiest first.
    """
    if not clients.num_rows:
        return []
    frame = _inside_windows(clients.to_pandas(), rows)
    frame["held"] = frame["in_flight_mean"] * frame["interval_s"]
    frame["asked"] = frame["connections"] * frame["interval_s"]
    grouped = frame.groupby("client").agg(
        requests=("requests_done", "sum"),
        output_tokens=("output_tokens", "sum"),
        cpu_max=("loop_cpu_ratio", "max"),
        lag_p99_s=("lag_p99_s", "max"),
        turnaround_p99_s=("turnaround_p99_s", "max"),
        held=("held", "sum"),
        asked=("asked", "sum"),
    )
    health = [
        {
            "client": int(client),
            "requests": int(row["requests"]),
            "output_tokens": int(row["output_tokens"]),
            **{k: _number(row[k]) for k in ("cpu_max", "lag_p99_s", "turnaround_p99_s")},
            "in_flight_ratio": float(row["held"] / row["asked"]) if row["asked"] else None,
        }
        for client, row in grouped.iterrows()
    ]
    return sorted(health, key=lambda c: -(c["cpu_max"] or 0.0))


def _inside_windows(frame: Any, rows: list[dict[str, Any]]) -> Any:
    starts = frame["level"].map({row["level"]: row["window_start_ns"] for row in rows}).astype(float)
    ends = frame["level"].map({row["level"]: row["window_end_ns"] for row in rows}).astype(float)
    middle = frame["time_ns"] - frame["interval_s"] * NS_PER_S / 2
    inside = frame[~((middle < starts) | (middle > ends))]
    return inside if len(inside) else frame


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
