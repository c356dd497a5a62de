"""The clients' health samples over a window (floor F3, pure): how busy the clients were, and how many requests they held."""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa

from distbench.analysis.arrays import integers, numbers
from distbench.analysis.windows import Window
from distbench.units import NS_PER_S


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HealthSummary:
    """
    The samples of a level. None: no sample.

    Attributes:
        samples: Samples inside the window (of the whole level where none is).
        cpu_max: Highest CPU share of a client's loop.
        connected_mean, in_flight_mean: Sums over the clients of each one's time-weighted mean.
        asked: Connections asked of all clients.
    """

    samples: int
    cpu_max: float | None
    connected_mean: float | None
    in_flight_mean: float | None
    asked: int | None


def summarize_health(samples: pa.Table, level: int, window: Window | None) -> HealthSummary:
    """
    Sum up the samples of one level.

    Args:
        samples: Schema CLIENTS, any levels.
        level: The level.
        window: A sample counts where the middle of its interval lies inside; None: all of the level count.
    """
    kept = samples.filter(pa.array(integers(samples, "level") == level))
    if window is not None and kept.num_rows:
        middle = numbers(kept, "time_ns") - numbers(kept, "interval_s") * NS_PER_S / 2
        inside = (middle >= window.start_ns) & (middle <= window.end_ns)
        kept = kept.filter(pa.array(inside)) if inside.any() else kept
    if not kept.num_rows:
        return HealthSummary(samples=0, cpu_max=None, connected_mean=None, in_flight_mean=None, asked=None)
    cpu = numbers(kept, "loop_cpu_ratio")
    found, client = np.unique(integers(kept, "client"), return_inverse=True)
    seconds = numbers(kept, "interval_s")

    def sum_of_means(name: str) -> float:
        weighed = np.bincount(client, numbers(kept, name) * seconds, len(found)).astype(np.float64)
        total = np.bincount(client, seconds, len(found)).astype(np.float64)
        return float(np.divide(weighed, total, out=np.zeros(len(found)), where=total > 0).sum())

    asked = np.zeros(len(found), np.int64)
    np.maximum.at(asked, client, integers(kept, "connections"))
    return HealthSummary(
        samples=kept.num_rows,
        cpu_max=None if np.isnan(cpu).all() else float(np.nanmax(cpu)),
        connected_mean=sum_of_means("connected"),
        in_flight_mean=sum_of_means("in_flight_mean"),
        asked=int(asked.sum()),
    )
