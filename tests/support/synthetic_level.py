"""One level of a synthetic run (synthetic_run.py): its requests in closed loop, and what would have been seen beside them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from distbench.core.levels import LevelSpec
from distbench.core.plan import Plan
from distbench.core.plan_io import build_plan
from distbench.store.schema import CLIENTS, LATENCIES, RATES, REQUESTS, SERVER

NS = 1_000_000_000
URL = "http://127.0.0.1:8000"
GPU_URL = "http://127.0.0.1:9400/metrics"
Floats = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Synthetic:
    """
    What to make.

    Attributes:
        connections: One level each, in order.
        repeats: Further visits of the levels around the best one.
        users: User messages per request, one level for each and each number of connections.
        requests: Per level; None: max(400, 8 x connections).
        seats: Sequences that the server works on at once.
        speed: Factor on every rate; 0.9 is a server that is 10 % slower.
        noise: Spread (sigma of the log) of the speed from level to level.
        server, gpu: Whether there are rows of the server and of GPUs.
        fail: Share of the requests that fail.
        targets: Number of replicas.
        clients: Load-generating processes.
        chunks: Whether the rows hold chunk times.
        error_text: What the server says of a failed request.
        plan: Further settings of the plan.
    """

    connections: Sequence[int] = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    repeats: int = 3
    users: Sequence[int] = (1,)
    requests: int | None = None
    seats: int = 64
    speed: float = 1.0
    noise: float = 0.01
    server: bool = True
    gpu: bool = True
    fail: float = 0.0
    targets: int = 2
    clients: int = 2
    chunks: bool = True
    output_tokens: int = 32
    seed: int = 0
    status: str = "complete"
    command: str = "capacity"
    error_text: str = "HTTP 503: the queue is full"
    plan: dict[str, Any] = dataclasses.field(default_factory=dict)


def plan_of(wanted: Synthetic) -> Plan:
    """Return the plan that the run would have had."""
    values: dict[str, Any] = {
        "urls": [URL, *[f"http://127.0.0.1:{8000 + i}" for i in range(1, wanted.targets)]],
        "model": "tiny",
        "output-tokens": wanted.output_tokens,
        **({"users-per-request": list(wanted.users)} if wanted.command == "shapes" else {}),
        **({"connections": list(wanted.connections)[:1]} if wanted.command != "capacity" else {}),
        **wanted.plan,
    }
    return build_plan(wanted.command, values, {})


class Level:
    """One level: its requests in closed loop, and what would have been seen beside them."""

    def __init__(self, wanted: Synthetic, spec: LevelSpec, rng: np.random.Generator, start_ns: int) -> None:
        self.wanted, self.spec, self.start_ns = wanted, spec, start_ns
        self.preempted_before = 0.0
        self.tokens = wanted.output_tokens * spec.users_per_request
        speed = wanted.speed * float(np.exp(rng.normal(0, wanted.noise))) if wanted.noise else wanted.speed
        over = max(0.0, np.log2(spec.connections / wanted.seats))
        self.running = min(spec.connections, wanted.seats)
        self.preemptions = round(0 if over <= 1 else 40 * (over - 1))
        self.step_s = (0.010 + 0.00022 * self.running) * (1 + 0.06 * max(0.0, over - 0.5)) / speed
        self.prefill_s = 0.02 / speed
        self._draw(rng)

    def _draw(self, rng: np.random.Generator) -> None:
        spec, requests = self.spec, int(self.spec.requests or 0)
        per = -(-requests // spec.connections)
        n = per * spec.connections
        busy_s = self.prefill_s + (self.tokens - 1) * self.step_s
        wait_s = busy_s * (spec.connections / self.running - 1)
        ttft = (wait_s + self.prefill_s) * np.exp(rng.normal(0, 0.12, n))
        decode = (self.tokens - 1) * self.step_s * np.exp(rng.normal(0, 0.03, n))
        span = (ttft + decode + 0.0002).reshape(spec.connections, per)
        first = rng.uniform(0, busy_s, spec.connections)
        sent = (np.cumsum(span, axis=1) - span + first[:, None]).ravel()
        order = np.argsort(sent, kind="stable")[:requests]
        self.connection = np.repeat(np.arange(spec.connections), per)[order]
        self.sent_ns = self.start_ns + (sent[order] * NS).astype(np.int64)
        self.ttft_ns = (ttft[order] * NS).astype(np.int64)
        self.decode_ns = (decode[order] * NS).astype(np.int64)
        self.failed = rng.random(requests) < self.wanted.fail
        self.first_ns = self.sent_ns + self.ttft_ns
        self.last_ns = self.first_ns + self.decode_ns
        self.end_ns = int(self.last_ns.max())
        # The window: from the first end of every connection to the first connection without work.
        ends = [self.last_ns[self.connection == c] for c in range(spec.connections)]
        self.window = (max(int(e.min()) for e in ends), max(int(self.sent_ns.max()), self.start_ns + 1))

    def write(self, path: Path) -> None:
        """Write the parts of this level: requests and samples per client, scrapes per target."""
        table, clients = self._requests(), self.wanted.clients
        for client in range(clients):
            mine = table.filter(pc.field("client") == client)
            folder = f"requests/level-{self.spec.level:04d}"
            _write(path / folder / f"client-{client:04d}-00000.parquet", mine)
            name = f"client-{client:04d}-{self.spec.level:05d}.parquet"
            _write(path / "clients" / name, pa.Table.from_pylist(self._samples(client), CLIENTS))
        if self.wanted.server:
            rows = pa.Table.from_pylist(self._scrapes(), SERVER)
            _write(path / "server" / f"server-{self.spec.level:05d}.parquet", rows)

    def _requests(self) -> pa.Table:
        n, ok = len(self.sent_ns), ~self.failed
        urls = plan_of(self.wanted).target.urls
        index = np.arange(n)

        def when(values: npt.NDArray[Any], there: npt.NDArray[np.bool_] = ok) -> pa.Array[Any]:
            made: pa.Array[Any] = pa.array(values, mask=~there)
            return made

        everywhere = np.ones(n, np.bool_)
        columns: dict[str, Any] = {
            "level": np.full(n, self.spec.level, np.int16),
            "client": (self.connection % self.wanted.clients).astype(np.int16),
            "connection": self.connection.astype(np.int32),
            "index": index,
            "request_id": self.spec.level * 10**12 + index,
            "phase": ["measured"] * n,
            "target": [urls[c % len(urls)] for c in self.connection],
            "first_sent_ns": when(self.sent_ns, everywhere),
            "sent_ns": when(self.sent_ns, everywhere),
            "first_byte_ns": when(self.first_ns - 1000),
            "first_token_ns": when(self.first_ns),
            "first_answer_ns": when(self.first_ns),
            "last_token_ns": when(self.last_ns),
            "end_ns": np.where(ok, self.last_ns, self.sent_ns + 5_000_000),
            "outcome": np.where(ok, "ok", "failed"),
            "error_kind": when(np.full(n, "http_5xx"), self.failed),
            "http_status": np.where(ok, 200, 503),
            "error_text": when(np.full(n, self.wanted.error_text), self.failed),
            "finish_reason": when(np.full(n, "length")),
            "prompt_tokens": when(np.full(n, 128 + 128 * self.spec.users_per_request)),
            "completion_tokens": when(np.full(n, self.tokens)),
            "cached_tokens": when(np.full(n, 128)),
            "token_source": when(np.full(n, "usage")),
            "user_messages": np.full(n, self.spec.users_per_request),
            "prompt_id": index,
            "chunk_us": self._chunks(),
            "bytes_received": np.where(ok, 200 * self.tokens, 300),
            "reads": np.where(ok, self.tokens + 1, 1),
            "attempts": np.ones(n),
            "reconnects": np.zeros(n),
            "stamp": ["kernel"] * n,
            "client_lag_us": when(np.full(n, 180), everywhere),
        }
        arrays = [
            pa.array(columns[f.name]).cast(f.type) if f.name in columns else pa.nulls(n, f.type)
            for f in REQUESTS
        ]
        return pa.Table.from_arrays(arrays, schema=REQUESTS)

    def _chunks(self) -> pa.Array[Any]:
        n = len(self.sent_ns)
        if not self.wanted.chunks:
            none: pa.Array[Any] = pa.nulls(n, pa.list_(pa.uint32()))
            return none
        steps = np.linspace(0, 1, self.tokens)
        us = (self.ttft_ns[:, None] + self.decode_ns[:, None] * steps) // 1000
        rows = zip(self.failed, us.astype(np.uint32), strict=True)
        made: pa.Array[Any] = pa.array([None if f else row for f, row in rows])
        return made

    def _seconds(self) -> Floats:
        return np.arange(self.start_ns, self.end_ns, NS, dtype=np.float64)

    def _tokens_until(self, at: Floats, of: npt.NDArray[np.bool_]) -> Floats:
        first, span = self.first_ns[of], np.maximum(1, self.decode_ns[of])
        return np.array([float(np.clip((t - first) / span, 0, 1).sum() * self.tokens) for t in at])

    def _samples(self, client: int) -> list[dict[str, Any]]:
        mine = self.connection % self.wanted.clients == client
        asked = len(np.unique(self.connection[mine])) if mine.any() else 0
        edges = np.append(self._seconds(), float(self.end_ns)) + NS
        tokens = np.diff(self._tokens_until(edges, mine & ~self.failed), prepend=0.0)
        done = np.diff([int((self.last_ns[mine] <= t).sum()) for t in edges], prepend=0)
        sent = np.diff([int((self.sent_ns[mine] <= t).sum()) for t in edges], prepend=0)
        flying = [int(((self.sent_ns[mine] <= t) & (self.last_ns[mine] > t)).sum()) for t in edges]
        return [
            {
                "level": self.spec.level,
                "client": client,
                "time_ns": int(t),
                "interval_s": 1.0,
                "connections": asked,
                "connected": asked,
                "in_flight": flying[i],
                "in_flight_mean": float(flying[i]),
                "loop_cpu_ratio": min(0.6, 0.02 + float(tokens[i]) / 80_000),
                "process_cpu_ratio": 0.1,
                "lag_p50_s": 0.00004,
                "lag_p99_s": 0.0002,
                "lag_max_s": 0.0006,
                "turnaround_p50_s": 0.00008,
                "turnaround_p99_s": 0.0003,
                "turnaround_sum_s": 0.01,
                "turnarounds": int(done[i]),
                "requests_sent": int(sent[i]),
                "requests_done": int(done[i]),
                "output_tokens": round(float(tokens[i])),
                "reads": round(float(tokens[i])),
                "bytes_received": round(float(tokens[i])) * 200,
                "waiting_parse": 0,
                "rss_bytes": 90_000_000,
            }
            for i, t in enumerate(edges)
        ]

    def _scrapes(self) -> list[dict[str, Any]]:
        urls, rows = plan_of(self.wanted).target.urls, []
        ok = ~self.failed
        times = self._seconds()
        tokens = self._tokens_until(times, ok)
        waiting = max(0, self.spec.connections - self.wanted.seats)
        for i, t in enumerate(times):
            for url in urls:
                share = 1 / len(urls)
                values = {
                    "vllm:num_requests_running": round(self.running * share),
                    "vllm:num_requests_waiting": round(waiting * share),
                    "vllm:kv_cache_usage_perc": self._kv(),
                    "vllm:prefix_cache_queries_total": 1000.0 * (self.spec.level + 1) + 256 * i,
                    "vllm:prefix_cache_hits_total": 500.0 * (self.spec.level + 1) + 128 * i,
                    "vllm:num_preemptions_total": self.preempted_before
                    + round(self.preemptions * share * (i + 1) / len(times)),
                    "vllm:generation_tokens_total": 1e7 * self.spec.level + float(tokens[i]) * share,
                }
                labels = [("engine", "0"), ("model_name", "tiny")]
                rows += [
                    {"time_ns": int(t), "target": url, "name": name, "labels": labels, "value": float(v)}
                    for name, v in values.items()
                ]
            if self.wanted.gpu:
                rows += self._gpu_rows(int(t))
        return rows

    def _gpu_rows(self, time_ns: int) -> list[dict[str, Any]]:
        values = {
            "DCGM_FI_DEV_GPU_UTIL": 99.0 if self.spec.connections > 2 else 80.0,
            "DCGM_FI_PROF_SM_ACTIVE": 0.1 + 0.5 * self.running / self.wanted.seats,
            "DCGM_FI_PROF_DRAM_ACTIVE": 0.2 + 0.4 * self.running / self.wanted.seats,
            "DCGM_FI_DEV_POWER_USAGE": 180.0 + 2 * self.running,
        }
        return [
            {"time_ns": time_ns, "target": GPU_URL, "name": name, "labels": [("gpu", str(g))], "value": v}
            for name, v in values.items()
            for g in range(2)
        ]

    def _kv(self) -> float:
        return min(0.98, 0.05 + 0.9 * self.spec.connections / (2 * self.wanted.seats))

    def row(self) -> dict[str, Any]:
        """Return this level's row of levels.parquet."""
        spec, ok = self.spec, ~self.failed
        lo, hi = self.window
        window_s, whole_s = (hi - lo) / NS, (self.end_ns - self.start_ns) / NS
        good = bool(ok.any())
        tokens = float(np.diff(self._tokens_until(np.array([lo, hi], np.float64), ok))[0])
        inside = (self.sent_ns >= lo) & (self.sent_ns < hi) & ok
        row: dict[str, Any] = {
            "level": spec.level,
            "repeat": spec.repeat,
            "connections": spec.connections,
            "clients": self.wanted.clients,
            "targets": self.wanted.targets,
            "pattern": "burst",
            "users_per_request": spec.users_per_request,
            "requests_planned": len(ok),
            "requests_ok": int(ok.sum()),
            "requests_failed": int(self.failed.sum()),
            **dict.fromkeys(("requests_cut", "requests_dropped", "requests_lost"), 0),
            "window_start_ns": lo,
            "window_end_ns": hi,
            "window_s": window_s,
            "whole_s": whole_s,
            "goodput_rate": None,
            "in_flight_mean": float(spec.connections) * 0.995,
            "bundled_ratio": 0.01,
            "scrapes": int(whole_s) if self.wanted.server else 0,
            "client_cpu_max": 0.4,
            "client_lag_p99_s": 0.0002,
            "turnaround_p99_s": 0.0003,
            "turnaround_ratio": 0.001,
            "reconciled": good if self.wanted.server else None,
            "valid": good,
            "invalid_reason": None if good else "all requests failed",
            "prompt_tokens_mean": 256.0 if good else None,
            "completion_tokens_mean": float(self.tokens) if good else None,
        }
        row |= self._rates(tokens, window_s, whole_s, int(ok.sum())) if good else {}
        row |= self._latencies(inside)
        row |= self._gauges() if self.wanted.server else {}
        row["verdict"], row["limit"] = self._verdict(good)
        return row

    def _rates(self, tokens: float, window_s: float, whole_s: float, ok: int) -> dict[str, float]:
        rate, prompt = tokens / self.tokens / window_s, 128 + 128 * self.spec.users_per_request
        whole, users = ok / whole_s, self.spec.users_per_request
        per_request = dict(zip(RATES, (1, self.tokens, self.tokens + prompt, users), strict=True))
        return {name: rate * k for name, k in per_request.items()} | {
            f"{name}_whole": whole * k for name, k in per_request.items()
        }

    def _latencies(self, inside: npt.NDArray[np.bool_]) -> dict[str, Any]:
        seconds = {
            "ttft": self.ttft_ns[inside] / NS,
            "tpot": self.decode_ns[inside] / NS / max(1, self.tokens - 1),
            "e2e": (self.ttft_ns + self.decode_ns)[inside] / NS,
        }
        seconds |= {"ttfo": seconds["ttft"], "icl": seconds["tpot"]}
        row: dict[str, Any] = {}
        for name in LATENCIES:
            values = seconds.get(name, np.array([]))
            row[f"{name}_n"] = len(values)
            for q in (50, 90, 99):
                row[f"{name}_p{q}_s"] = float(np.quantile(values, q / 100)) if len(values) else None
        return row

    def _gauges(self) -> dict[str, Any]:
        waiting = max(0, self.spec.connections - self.wanted.seats)
        gpu = {
            "gpu_util_mean": 0.99 if self.spec.connections > 2 else 0.8,
            "sm_active_mean": 0.1 + 0.5 * self.running / self.wanted.seats,
            "dram_active_mean": 0.2 + 0.4 * self.running / self.wanted.seats,
            "gpu_power_mean_w": 180.0 + 2 * self.running,
        }
        return {
            "running_mean": float(self.running),
            "running_max": float(self.running),
            "waiting_mean": float(waiting),
            "waiting_ratio": 1.0 if waiting else 0.0,
            "kv_usage_mean": self._kv(),
            "kv_usage_max": self._kv(),
            "prefix_hit_ratio": 0.5,
            "preemptions": float(self.preemptions),
            "queue_time_mean_s": waiting * 0.01,
            "prefill_time_mean_s": self.prefill_s,
            "decode_time_mean_s": (self.tokens - 1) * self.step_s,
            **(gpu if self.wanted.gpu else {}),
        }

    def _verdict(self, good: bool) -> tuple[str, str]:
        if not good or not self.wanted.server:
            return "unknown", "none_found"
        full = self.spec.connections > self.wanted.seats
        return ("saturated", "sequences") if full else ("not_saturated", "none_found")


def _write(path: Path, table: pa.Table) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, compression="zstd")
