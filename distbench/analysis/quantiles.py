"""
Exact quantiles (floor F3, pure): linear between the two nearest ranks, over all values of all clients together.

Values that are not there (NaN) do not count. A quantile of nothing is None. Inter-chunk gaps are too many to hold, but they are whole
µs: counting each value is exact and takes bounded memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from distbench.analysis.arrays import Floats

QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


def quantiles(values: Floats, qs: Sequence[float]) -> list[float | None]:
    """
    Return quantiles of values.

    Args:
        values: Any shape; NaN is left out.
        qs: Each within 0..1.

    Source: h = q * (n - 1), linear between the values of rank floor(h) and floor(h) + 1 (Hyndman and Fan, type 7).
    """
    absent = np.isnan(values)
    present = values[~absent] if absent.any() else values
    if present.size == 0:
        return [None] * len(qs)
    return [float(v) for v in np.quantile(present, list(qs), method="linear")]


def mean(values: Floats) -> float | None:
    """Return the mean without NaN; None of nothing."""
    present = values[~np.isnan(values)]
    return float(present.mean()) if present.size else None


class WholeCounts:
    """
    Counts of non-negative whole numbers, from which quantiles are exact. Two of them add up to one of all their values.

    Values below 2**20 (1.05 s in µs) have a counter each; larger ones, which are few, are kept sorted with their counts.
    """

    _DENSE = 1 << 20
    _COMPACT_FROM = 1 << 20

    def __init__(self) -> None:
        self._dense = np.zeros(self._DENSE, np.int64)
        self._large: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]] = []
        self._pending = 0

    def add(self, values: npt.NDArray[np.integer]) -> None:
        """Count values; each >= 0."""
        is_small = values < self._DENSE
        if is_small.all():
            self._dense += np.bincount(values, minlength=self._DENSE)
            return
        self._dense += np.bincount(values[is_small], minlength=self._DENSE)
        found, times = np.unique(values[~is_small].astype(np.int64), return_counts=True)
        self._large.append((found, times.astype(np.int64)))
        self._pending += len(found)
        if self._pending > self._COMPACT_FROM:
            self._compact()

    @property
    def n(self) -> int:
        """Return how many values were counted."""
        return int(self._dense.sum()) + sum(int(times.sum()) for _, times in self._large)

    def quantiles(self, qs: Sequence[float]) -> list[float | None]:
        """Return quantiles as the function of the same name would of all values; None of nothing."""
        self._compact()
        found = np.flatnonzero(self._dense)
        times = self._dense[found]
        for large, large_times in self._large:
            found, times = np.concatenate([found, large]), np.concatenate([times, large_times])
        if not found.size:
            return [None] * len(qs)
        ends = np.cumsum(times)
        last = int(ends[-1]) - 1

        def at_rank(rank: int) -> float:
            return float(found[np.searchsorted(ends, rank, side="right")])

        out: list[float | None] = []
        for q in qs:
            h = q * last
            low = math.floor(h)
            a, b = at_rank(low), at_rank(min(low + 1, last))
            out.append(a + (h - low) * (b - a))
        return out

    def _compact(self) -> None:
        if len(self._large) > 1:
            values = np.concatenate([v for v, _ in self._large])
            found, where = np.unique(values, return_inverse=True)
            times = np.zeros(len(found), np.int64)
            np.add.at(times, where, np.concatenate([t for _, t in self._large]))
            self._large = [(found, times)]
        self._pending = 0
