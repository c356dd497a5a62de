"""
One level as far as the files of its run tell it without the other levels (floor F3).

This is where the clients' rows and samples, the servers' series and what the driver noted of a level meet. Verdicts need the other
levels too: they are judge.py's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distbench.analysis.case import LevelCase
from distbench.analysis.clamps import CLAMP_COLUMNS, clamp_columns
from distbench.analysis.client_limit import ClientHealth, client_health
from distbench.analysis.level_row import LevelRow, merged
from distbench.analysis.readings import Reading
from distbench.analysis.reconcile import (
    CLIENT_COLUMNS,
    Reconciliation,
    ServerDeltas,
    client_sums,
    reconcile,
)
from distbench.analysis.server_view import ServerView, server_view
from distbench.analysis.stability import Stability, judge_stability
from distbench.analysis.summary import CHUNK_COLUMNS, ROW_COLUMNS, LevelSummary, summarize_level
from distbench.core.levels import LevelSpec
from distbench.core.plan import Slo
from distbench.core.plan_values import read_slos
from distbench.store.reader import RunData
from distbench.telemetry.detect import Continuity
from distbench.units import NS_PER_S

# Rows of the servers before the settling of a level, so that its first reading is among them.
_MARGIN_NS = 10 * NS_PER_S
_ROW_COLUMNS = tuple(
    dict.fromkeys((*ROW_COLUMNS, *CLAMP_COLUMNS, *(c for c in CLIENT_COLUMNS if c != "chunk_us")))
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LevelFacts:
    """
    One level, not yet judged.

    Attributes:
        spec: Its settings.
        summary: What the clients' rows say.
        health: What the clients' samples say.
        server: What the servers told; None without metrics.
        reconciliation: Both held against each other; None without metrics.
        stability: Of the window; None without one.
        row: Of levels.parquet; verdict and limit are None.
        lost: Client -> reason, of those that were lost in it.
        stopped: Why the driver ended it early; None.
        purpose: Why it was run where it is no part of the search; None.
    """

    spec: LevelSpec
    summary: LevelSummary
    health: ClientHealth
    server: ServerView | None
    reconciliation: Reconciliation | None
    stability: Stability | None
    row: LevelRow
    lost: Mapping[str, str]
    stopped: str | None
    purpose: str | None

    @property
    def case(self) -> LevelCase:
        """What verdicts are made from."""
        return LevelCase(
            row=self.row,
            server=self.server,
            client=self.health,
            stability=self.stability,
            ttft_mean_s=self.summary.ttft_mean_s,
            e2e_mean_s=self.summary.e2e_mean_s,
        )

    @property
    def reading(self) -> Reading:
        """What the capacity search knows of it."""
        return self.case.reading


def level_facts(run: RunData, entry: Mapping[str, Any]) -> LevelFacts:
    """
    Gather what a run's files say of one level.

    Args:
        run: The run.
        entry: Its object in run.json's levels.
    """
    spec = spec_of(entry)
    plan = run.plan()
    clients = len(entry.get("clients") or run.info.hosts)
    samples = run.clients()
    rows = run.requests(spec.level, columns=_ROW_COLUMNS, coded=True)
    summary = summarize_level(
        spec,
        rows,
        num_clients=clients,
        num_targets=len(plan.get("urls", ())) or 1,
        slos=plan_slos(plan),
        chunk_batches=run.request_batches(spec.level, columns=CHUNK_COLUMNS, coded=True),
    )
    server = _server(run, plan, entry, summary)
    lost, stopped = entry.get("lost_clients") or {}, entry.get("stopped")
    touched = _touched(lost, stopped, server)
    health = client_health(
        samples.filter(pc.equal(samples["level"], pa.scalar(spec.level, pa.int16()))),
        window_ns=_window_ns(summary),
        connections=spec.connections,
        clients=clients,
        closed_loop=not spec.is_open_loop,
        waiting_ratio=None if server is None else server.waiting_ratio,
        disturbed="; ".join(touched) or None,
    )
    reconciliation = _reconcile(rows, server)
    row = merged(
        summary.row,
        {} if server is None else server.level_columns(),
        _client_columns(summary, health),
        clamp_columns(rows),
        {"reconciled": None if reconciliation is None else reconciliation.reconciled},
    )
    return LevelFacts(
        spec=spec,
        summary=summary,
        health=health,
        server=server,
        reconciliation=reconciliation,
        stability=judge_stability(np.asarray(summary.slice_rates)) if summary.slice_rates else None,
        row=merged(row, _invalidity(row, touched, reconciliation)),
        lost=lost,
        stopped=stopped,
        purpose=entry.get("purpose"),
    )


def spec_of(entry: Mapping[str, Any]) -> LevelSpec:
    """Return the settings of a level from its object in run.json."""
    names = {field.name for field in dataclasses.fields(LevelSpec)}
    return LevelSpec(**{name: value for name, value in entry.items() if name in names})


def plan_slos(plan: Mapping[str, Any]) -> tuple[Slo, ...]:
    """Return the SLOs in the table of a plan."""
    return read_slos(plan.get("slo", {}))


def _window_ns(summary: LevelSummary) -> tuple[int, int] | None:
    return None if summary.window is None else (summary.window.start_ns, summary.window.end_ns)


def _client_columns(summary: LevelSummary, health: ClientHealth) -> LevelRow:
    """Return the samples' figures where the rows, which are exact, have none."""
    return {
        name: value
        for name, value in health.level_columns().items()
        if summary.row[name] is None and value is not None
    }


def _touched(lost: Mapping[str, str], stopped: str | None, server: ServerView | None) -> list[str]:
    """Say which faults touched a level while it ran."""
    reasons = [f"client {client} was lost" for client in lost]
    if stopped is not None:
        reasons.append(f"it was ended early ({stopped.replace('_', ' ')})")
    if server is not None and server.continuity is Continuity.RESET:
        reasons.append("a server restarted")
    return reasons


def _invalidity(
    row: LevelRow,
    touched: list[str],
    reconciliation: Reconciliation | None,
) -> LevelRow:
    """A level that a fault or somebody else's load touched is not judged, whatever its figures."""
    reasons = list(touched)
    if reconciliation is not None and reconciliation.foreign_traffic:
        reasons.append("the server had other traffic")
    if not reasons:
        return {}
    known = row["invalid_reason"]
    return {"valid": False, "invalid_reason": "; ".join([*reasons, *([known] if known else [])])}


def _server(
    run: RunData, plan: Mapping[str, Any], entry: Mapping[str, Any], summary: LevelSummary
) -> ServerView | None:
    settled = [s for s in entry.get("settled") or () if s is not None]
    window_ns = _window_ns(summary)
    if window_ns is None or len(settled) != 2:
        return None
    before_ns, after_ns = (int(s["time_ns"]) for s in settled)
    return server_view(
        run.server(between_ns=(before_ns - _MARGIN_NS, after_ns)),
        window_ns=window_ns,
        settled_ns=(before_ns, after_ns),
        targets=() if plan.get("no-metrics") else tuple(plan.get("metrics-url") or plan.get("urls", ())),
        model=run.info.extra.get("target", {}).get("model"),
    )


def _reconcile(rows: pa.Table, server: ServerView | None) -> Reconciliation | None:
    if server is None or server.continuity is not Continuity.STEADY:
        return None
    return reconcile(
        client_sums(rows),
        ServerDeltas(
            requests_finished=server.requests_finished,
            prompt_tokens=server.prompt_tokens,
            completion_tokens=server.generation_tokens,
            finished_prompt_tokens=server.finished_prompt_tokens,
            finished_completion_tokens=server.finished_generation_tokens,
        ),
    )
