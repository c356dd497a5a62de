"""
Run directories made by calculation, for tests of everything that reads one.

The server here is a formula: it works on at most `seats` requests at a time, its step grows with the batch, and past the peak it
loses throughput to preemptions. Requests are drawn from it in closed loop, so that rows, samples, scrapes and levels tell one story.
No clock, no socket; equal arguments give equal files.
"""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from distbench.core.levels import LevelSpec
from distbench.core.plan_io import plan_to_table
from distbench.store.rundir import RunDir
from distbench.store.runinfo import RunInfo, Totals, level_entry
from distbench.store.schema import LEVELS
from tests.support.synthetic_level import NS, Level, Synthetic, plan_of


def write_run(path: Path, wanted: Synthetic | None = None, **changes: Any) -> Path:
    """Write a run directory and return its path; keywords are the fields of Synthetic."""
    wanted = dataclasses.replace(wanted or Synthetic(), **changes)
    run = RunDir.create(path)
    rng = np.random.default_rng(wanted.seed)
    rows: list[dict[str, Any]] = []
    start_ns, preempted = 2 * NS, 0.0
    for spec in _specs(wanted):
        level = Level(wanted, spec, rng, start_ns)
        level.preempted_before = preempted
        preempted += round(level.preemptions / wanted.targets)
        level.write(path)
        rows.append(level.row())
        start_ns = level.end_ns + 2 * NS
    run.write_levels(pa.Table.from_pylist(rows, LEVELS))
    run.write_findings(_findings(wanted, rows))
    table = plan_to_table(plan_of(wanted))
    run.write_plan(table)
    run.write_info(_info(wanted, table, rows))
    return path


def _specs(wanted: Synthetic) -> list[LevelSpec]:
    ladder = list(itertools.product(wanted.users, wanted.connections))
    best = min(range(len(ladder)), key=lambda i: abs(ladder[i][1] - wanted.seats))
    around = ladder[max(0, best - 1) : best + 2] if wanted.command == "capacity" else ladder
    visits = [(0, *setting) for setting in ladder]
    visits += [(r, *setting) for r in range(1, wanted.repeats + 1) for setting in around]
    return [
        LevelSpec(
            level=number,
            repeat=repeat,
            connections=connections,
            requests=wanted.requests or max(400, 8 * connections),
            warmup=connections,
            users_per_request=users,
        )
        for number, (repeat, users, connections) in enumerate(visits)
    ]


def _point(row: dict[str, Any], same: list[float]) -> dict[str, Any]:
    spread = (max(same) - min(same)) / 2 if len(same) > 1 else 0.0
    rate = row["output_token_rate"]
    return {
        "connections": row["connections"],
        "request_rate": row["request_rate"],
        "output_token_rate": rate,
        "interval": [rate - spread, rate + spread],
    }


def _findings(wanted: Synthetic, rows: list[dict[str, Any]]) -> dict[str, Any]:
    valid = [r for r in rows if r["valid"]]
    base: dict[str, Any] = {"schema": 1, "peak": None, "knee": None, "decline": None}
    base["client"] = {"limited": False, "evidence": ["loop CPU at most 40 %", "turnaround 0.1 % of the time"]}
    base["levels"] = [
        {
            "level": r["level"],
            "connections": r["connections"],
            "verdict": r["verdict"],
            "limit": r["limit"],
            "evidence": [f"running {r.get('running_mean')}", f"waiting {r.get('waiting_mean')}"],
        }
        for r in rows
    ]
    if not valid:
        said = {"kind": "all_failed", "severity": "error", "evidence": {"failed": len(rows)}}
        said["text"] = f"Every request failed; the server said: {wanted.error_text}"
        return {**base, "verdict": "unknown", "limit": "none_found", "lower_bound": False, "findings": [said]}
    best = max(valid, key=lambda r: float(r["output_token_rate"]))
    knee = next(r for r in valid if r["output_token_rate"] >= 0.97 * best["output_token_rate"])
    last = max(valid, key=lambda r: int(r["connections"]))

    def same(row: dict[str, Any]) -> list[float]:
        return [float(r["output_token_rate"]) for r in valid if r["connections"] == row["connections"]]

    ratio = last["output_token_rate"] / best["output_token_rate"]
    full = any(r["verdict"] == "saturated" for r in valid)
    text = (
        f"The server carries {best['output_token_rate']:,.0f} output tokens/s at {best['connections']} connections; "
        "more of them make it worse, because all of its sequence slots are taken."
    )
    peak: dict[str, Any] = {
        "kind": "peak",
        "severity": "good" if full else "info",
        "text": text,
        "evidence": {},
    }
    gpu = {
        "kind": "gpu_busy_not_full",
        "severity": "info",
        "text": "GPU utilisation was 99 % from level 2 on, yet throughput still grew 9.8x after it.",
        "evidence": {"gpu_util_mean": 0.99, "growth": 9.8},
    }
    return {
        **base,
        "verdict": "saturated" if full else "unknown",
        "limit": "sequences" if full else "none_found",
        "lower_bound": not full,
        "peak": _point(best, same(best)),
        "knee": _point(knee, same(knee)),
        "decline": {"connections": last["connections"], "ratio": ratio} if ratio < 0.97 else None,
        "findings": [peak, gpu] if wanted.server and wanted.gpu else [peak],
    }


def _info(wanted: Synthetic, plan: dict[str, Any], rows: list[dict[str, Any]]) -> RunInfo:
    ok = sum(r["requests_ok"] for r in rows)
    failed = sum(r["requests_failed"] for r in rows)
    return RunInfo(
        status=wanted.status,
        command=wanted.command,
        plan=plan,
        versions={"distbench": "0.1.0", "python": "3.11.2", "server": "0.11.0"},
        hosts=[{"client": c, "host": "node-a", "cpus": 8} for c in range(wanted.clients)],
        clients_per_host={"node-a": wanted.clients},
        epoch_wall_ns=1_796_000_000 * NS,
        epoch_monotonic_ns=5 * NS,
        ended_wall_ns=1_796_000_400 * NS,
        seeds={"prompts": 0},
        totals=Totals(planned=ok + failed, ok=ok, failed=failed),
        levels=[level_entry(spec) for spec in _specs(wanted)],
        notes=["made by calculation"],
    )
