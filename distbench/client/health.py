"""A client's health while a level runs: how busy it was, how late, how full (floor F3)."""

from __future__ import annotations

import time
from typing import Any

import psutil
import pyarrow as pa

from distbench.client.counters import LevelCounters, quantile_s
from distbench.store.schema import CLIENTS
from distbench.units import NS_PER_S


class HealthSampler:
    """
    Makes a row of CLIENTS about once per second; to be used on the load's own thread, whose CPU time it reads.

    Lag and turnaround are of the requests that ended in the interval, tokens of those that were read in it; reads and bytes
    include what running requests have received so far.
    """

    def __init__(
        self, *, level: int, client: int, connections: int, epoch_ns: int, counters: LevelCounters
    ) -> None:
        """
        Begin the first interval now.

        Args:
            level: As in the rows.
            client: Likewise.
            connections: Asked of this client.
            epoch_ns: The run's epoch on the client's clock.
            counters: Of the level.
        """
        self._fixed = {"level": level, "client": client, "connections": connections}
        self._epoch_ns = epoch_ns
        self._counters = counters
        self._process = psutil.Process()
        self._rows: list[dict[str, Any]] = []
        self._last = self._reading(0, 0)

    def restart(self) -> None:
        """Begin the first interval anew: what lay before the level's start is no part of it."""
        self._last = self._reading(0, 0)

    def sample(self, *, waiting_parse: int, running_reads: int, running_bytes: int) -> int:
        """
        End the interval and begin the next.

        Args:
            waiting_parse: Answers received and not yet read.
            running_reads: Reads so far of the requests in flight.
            running_bytes: Bytes so far of the requests in flight.

        Returns:
            Resident memory of the process, bytes.
        """
        counters = self._counters
        now, before = self._reading(running_reads, running_bytes), self._last
        wall_ns = max(1, now["time_ns"] - before["time_ns"])
        delta = {name: now[name] - before[name] for name in now}
        rss_bytes = self._process.memory_info().rss
        self._rows.append(
            {
                **self._fixed,
                "time_ns": now["time_ns"] - self._epoch_ns,
                "interval_s": wall_ns / NS_PER_S,
                "connected": counters.connected,
                "in_flight": counters.in_flight.count,
                "in_flight_mean": max(0.0, delta["in_flight_ns"] / wall_ns),
                "loop_cpu_ratio": delta["thread_ns"] / wall_ns,
                "process_cpu_ratio": delta["process_ns"] / wall_ns,
                "lag_p50_s": quantile_s(counters.lags_ns, 0.5),
                "lag_p99_s": quantile_s(counters.lags_ns, 0.99),
                "lag_max_s": quantile_s(counters.lags_ns, 1.0),
                "turnaround_p50_s": quantile_s(counters.turnarounds_ns, 0.5),
                "turnaround_p99_s": quantile_s(counters.turnarounds_ns, 0.99),
                "turnaround_sum_s": sum(counters.turnarounds_ns) / NS_PER_S,
                "turnarounds": len(counters.turnarounds_ns),
                "send_lag_p99_s": quantile_s(counters.send_lags_ns, 0.99),
                "requests_sent": delta["taken"],
                "requests_done": delta["exchanges"],
                "output_tokens": delta["output_tokens"],
                "reads": max(0, delta["reads"]),
                "bytes_received": max(0, delta["bytes_received"]),
                "waiting_parse": waiting_parse,
                "rss_bytes": rss_bytes,
            }
        )
        self._last = now
        counters.lags_ns.clear()
        counters.turnarounds_ns.clear()
        counters.send_lags_ns.clear()
        return rss_bytes

    def take(self) -> pa.Table | None:
        """Return the samples since the last call; None where there are none."""
        if not self._rows:
            return None
        rows, self._rows = self._rows, []
        return pa.Table.from_pylist(rows, schema=CLIENTS)

    def _reading(self, running_reads: int, running_bytes: int) -> dict[str, int]:
        counters = self._counters
        now_ns = time.monotonic_ns()
        return {
            "time_ns": now_ns,
            "thread_ns": time.thread_time_ns(),
            "process_ns": time.process_time_ns(),
            "in_flight_ns": counters.in_flight.integral_ns(now_ns),
            "taken": counters.taken,
            "exchanges": counters.exchanges,
            "output_tokens": counters.output_tokens,
            "reads": counters.reads + running_reads,
            "bytes_received": counters.bytes_received + running_bytes,
        }
