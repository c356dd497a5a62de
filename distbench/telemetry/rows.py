"""
Server readings as columns: the rows of server/ in a run directory (floor F2).

A scrape of vLLM is about 90 rows; they wait here, bounded by the recorder's flush, until drained as one Arrow table.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from distbench.store.schema import SERVER
from distbench.telemetry.exposition import Sample


class ServerRows:
    """Collects readings from one thread and hands them to another."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._clear()

    def _clear(self) -> None:
        self._times: list[int] = []
        self._targets: list[str] = []
        self._names: list[str] = []
        self._labels: list[list[tuple[str, str]]] = []
        self._values: list[float | None] = []

    def append(self, time_ns: int, target: str, samples: Iterable[Sample]) -> None:
        """Add one scrape of one target; time_ns is relative to the run's epoch."""
        with self._lock:
            for sample in samples:
                self._times.append(time_ns)
                self._targets.append(target)
                self._names.append(sample.name)
                self._labels.append(list(sample.labels.items()))
                self._values.append(sample.value)

    def drain(self) -> pa.Table:
        """Return everything gathered since the last call in the schema SERVER; 0 rows where there is nothing."""
        with self._lock:
            columns: dict[str, list[Any]] = {
                "time_ns": self._times,
                "target": self._targets,
                "name": self._names,
                "labels": self._labels,
                "value": self._values,
            }
            self._clear()
        return pa.Table.from_pydict(columns, schema=SERVER)


def server_table(scrapes: Iterable[tuple[int, str, Iterable[Sample]]]) -> pa.Table:
    """Return (time_ns, target, samples) scrapes as one table in the schema SERVER."""
    rows = ServerRows()
    for time_ns, target, samples in scrapes:
        rows.append(time_ns, target, samples)
    return rows.drain()
