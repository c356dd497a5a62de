"""
The run on one axis of time, in at most a few hundred steps (floor F4).

Whatever the length of the run and the number of clients, what comes out is small: samples and scrapes are put into bins. A bin
without a reading is None, so that a line breaks there instead of inventing a value.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from distbench.analysis.server_series import TargetSeries, server_series
from distbench.telemetry.gpu import GPU_FAMILIES
from distbench.telemetry.vocabulary import FAMILIES, Quantity
from distbench.units import NS_PER_S

MAX_BINS = 600
Values = list[float | None]

_GAUGES = (Quantity.RUNNING, Quantity.WAITING, Quantity.KV_USAGE)
_COUNTERS = (Quantity.PREFIX_QUERIES, Quantity.PREFIX_HITS, Quantity.PREEMPTIONS)


@dataclasses.dataclass(frozen=True, slots=True)
class Timeline:
    """
    Series over the run.

    Attributes:
        bin_s: Width of a bin in seconds.
        seconds: Middle of each bin, seconds since the run's epoch.
        series: Name -> one value per bin, None where nothing was read. Rates are per second over all clients or targets; kv_usage is
            the mean over the engines; cpu and lag are the worst client's.
    """

    bin_s: float
    seconds: list[float]
    series: dict[str, Values]

    def __getitem__(self, name: str) -> Values:
        """Return a series; all None where there was nothing to read."""
        return self.series.get(name) or [None] * len(self.seconds)

    def has(self, *names: str) -> bool:
        """Return whether any of the series holds a value."""
        return any(value is not None for name in names for value in self.series.get(name, ()))


def make_timeline(clients: pa.Table, server: pa.Table) -> Timeline:
    """
    Bin the samples of all clients and the scrapes of all targets.

    Args:
        clients: Rows in the schema CLIENTS; may be empty.
        server: Rows in the schema SERVER; may be empty.
    """
    times = pa.chunked_array([*clients["time_ns"].chunks, *server["time_ns"].chunks], pa.int64())
    if not len(times):
        return Timeline(1.0, [], {})
    stamps = times.to_numpy()
    start_s, end_s = float(stamps.min()) / NS_PER_S - 1.0, float(stamps.max()) / NS_PER_S
    bin_s = float(max(1, math.ceil((end_s - start_s) / MAX_BINS)))
    bins = _Bins(math.floor(start_s), bin_s, math.ceil((end_s - math.floor(start_s)) / bin_s) + 1)
    series = {**_client_series(clients, bins), **_server_series(server, bins), **_gpu_series(server, bins)}
    return Timeline(bin_s, bins.middles(), series)


@dataclasses.dataclass(frozen=True, slots=True)
class _Bins:
    start_s: int
    bin_s: float
    count: int

    def of(self, time_s: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        return np.clip((time_s - self.start_s) // self.bin_s, 0, self.count - 1).astype(np.int64)

    def middles(self) -> list[float]:
        return [self.start_s + (i + 0.5) * self.bin_s for i in range(self.count)]

    def fill(self, values: Any) -> Values:
        """Return a pandas series that is indexed by bin as one value per bin."""
        full = values.reindex(range(self.count))
        return [None if pd.isna(v) else rounded(float(v)) for v in full]


def rounded(value: float) -> float:
    """Return value with five significant digits: enough for a pixel, a third of the bytes."""
    return float(f"{value:.5g}")


def _client_series(clients: pa.Table, bins: _Bins) -> dict[str, Values]:
    if not clients.num_rows:
        return {}
    names = (
        "client",
        "time_ns",
        "interval_s",
        "connections",
        "in_flight_mean",
        "loop_cpu_ratio",
        "lag_p99_s",
    )
    frame = clients.select([*names, "requests_done", "output_tokens"]).to_pandas()
    # A sample covers the time before it: it belongs to the bin of its middle.
    frame["bin"] = bins.of((frame["time_ns"] / NS_PER_S - frame["interval_s"] / 2).to_numpy())
    sums = frame.groupby("bin")[["requests_done", "output_tokens"]].sum()
    held = frame.groupby(["bin", "client"])[["connections", "in_flight_mean"]].mean().groupby("bin").sum()
    worst = frame.groupby("bin")[["loop_cpu_ratio", "lag_p99_s"]].max()
    return {
        "request_rate": bins.fill(sums["requests_done"] / bins.bin_s),
        "output_token_rate": bins.fill(sums["output_tokens"] / bins.bin_s),
        "asked": bins.fill(held["connections"]),
        "in_flight": bins.fill(held["in_flight_mean"]),
        "cpu": bins.fill(worst["loop_cpu_ratio"]),
        "lag_p99_s": bins.fill(worst["lag_p99_s"]),
    }


def _server_series(server: pa.Table, bins: _Bins) -> dict[str, Values]:
    names = [name for quantity in (*_GAUGES, *_COUNTERS) for name in FAMILIES[quantity].names]
    targets = server_series(server.filter(pc.is_in(server["name"], pa.array(names)))).targets
    out: dict[str, Values] = {}
    for quantity in _GAUGES:
        lines = [
            _binned(target.times_ns, values, bins).groupby("bin").mean()
            for target in targets
            for values in target.gauges.get(quantity, {}).values()
        ]
        if lines:
            joined = pd.concat(lines, axis=1)
            whole = joined.mean(axis=1) if quantity is Quantity.KV_USAGE else joined.sum(axis=1, min_count=1)
            out[quantity.value] = bins.fill(whole)
    hits, queries = (_growth(targets, q, bins) for q in (Quantity.PREFIX_HITS, Quantity.PREFIX_QUERIES))
    if hits is not None and queries is not None:
        out["prefix_hit_ratio"] = bins.fill(hits / queries.where(queries > 0))
    preempted = _growth(targets, Quantity.PREEMPTIONS, bins)
    if preempted is not None:
        out["preemption_rate"] = bins.fill(preempted / bins.bin_s)
    return out


def _binned(times_ns: npt.NDArray[np.int64], values: Any, bins: _Bins) -> Any:
    index = pd.Index(bins.of(times_ns / NS_PER_S), name="bin")
    return pd.Series(values, index).dropna()


def _growth(targets: Sequence[TargetSeries], quantity: Quantity, bins: _Bins) -> Any:
    """
    Return by how much a counter grew in each bin, over all engines; None where nobody exports it.

    A fall (a restarted server) counts as nothing.
    """
    lines = [
        _binned(target.times_ns[1:], np.diff(values).clip(min=0), bins).groupby("bin").sum()
        for target in targets
        for values in target.counters.get(quantity, {}).values()
    ]
    return pd.concat(lines, axis=1).sum(axis=1, min_count=1) if lines else None


def _gpu_series(server: pa.Table, bins: _Bins) -> dict[str, Values]:
    out: dict[str, Values] = {}
    for name, (quantity, factor) in GPU_FAMILIES.items():
        rows = server.filter(pc.field("name") == name).select(["time_ns", "value"])
        if rows.num_rows:
            frame = rows.to_pandas().dropna()
            frame["bin"] = bins.of((frame["time_ns"] / NS_PER_S).to_numpy())
            out[f"gpu_{quantity.value}"] = bins.fill(frame.groupby("bin")["value"].mean() * factor)
    return out
