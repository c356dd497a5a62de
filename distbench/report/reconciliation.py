"""The reconcile table of a report: what the clients counted beside what the servers' counters grew by (floor F4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from distbench.analysis.reconcile import ClientSums, Reconciliation, ServerDeltas, reconcile
from distbench.analysis.server_view import ServerView, server_view

Row = Mapping[str, Any]


def reconcile_levels(
    rows: list[dict[str, Any]],
    sums: Mapping[int, ClientSums],
    server: pa.Table,
    entries: Mapping[int, Mapping[str, Any]],
    model: str | None,
) -> list[dict[str, Any]]:
    """
    Compare both sides of every level.

    Args:
        rows: Rows of levels.parquet.
        sums: Level -> what the clients counted.
        server: Rows in the schema SERVER.
        entries: Level -> its object in run.json.
        model: The model under load; None: not known.

    Returns:
        One mapping per level: its number, connections, where its requests went, and for finished requests, prompt and output tokens
        the figures of both sides (None: not exported), the verdict of levels.parquet and a remark.
    """
    return [
        _level(row, sums.get(row["level"]), _view(row, server, entries.get(row["level"], {}), model))
        for row in rows
    ]


def _view(row: Row, server: pa.Table, entry: Row, model: str | None) -> ServerView | None:
    settled = [s for s in entry.get("settled") or () if s]
    window = (row["window_start_ns"], row["window_end_ns"])
    if len(settled) != 2 or None in window:
        return None
    before, after = (int(s["time_ns"]) for s in settled)
    # One reading before the settled one is enough to tell a counter's start.
    margin_ns = 5_000_000_000
    near = (pc.field("time_ns") >= before - margin_ns) & (pc.field("time_ns") <= after)
    part = server.filter(near)
    return server_view(part, window_ns=window, settled_ns=(before, after), model=model) if len(part) else None


def _level(row: Row, client: ClientSums | None, view: ServerView | None) -> dict[str, Any]:
    words = ("planned", "ok", "failed", "cut", "dropped", "lost")
    made = _reconciled(client, view)
    checks = {check.name: check for check in made.checks} if made else {}
    pairs = [
        {"client": check.client, "server": check.server} if check else {"client": None, "server": None}
        for check in map(checks.get, ("requests finished", "prompt tokens", "output tokens"))
    ]
    word, tone = {True: ("yes", "yes"), False: ("no", "no")}.get(row["reconciled"], ("not measured", ""))
    problem = made.problem if made and row["reconciled"] is False else None
    return {
        "level": row["level"],
        "connections": row["connections"],
        **{name: row[f"requests_{name}"] for name in words},
        "pairs": pairs,
        "word": word,
        "tone": tone,
        "remark": problem or row["invalid_reason"] or "",
    }


def _reconciled(client: ClientSums | None, view: ServerView | None) -> Reconciliation | None:
    if client is None:
        return None
    if view is None:
        return reconcile(client, ServerDeltas())
    deltas = ServerDeltas(
        requests_finished=view.requests_finished,
        prompt_tokens=view.prompt_tokens,
        completion_tokens=view.generation_tokens,
        finished_prompt_tokens=view.finished_prompt_tokens,
        finished_completion_tokens=view.finished_generation_tokens,
    )
    return reconcile(client, deltas)
