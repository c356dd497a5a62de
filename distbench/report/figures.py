"""
What every form of a report shows, read once from a run directory (floor F4).

Terminal, Markdown, JSON and HTML take their rows, findings, errors and notes from here, so that no two of them disagree.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from distbench.analysis.judge import judge_run
from distbench.store.reader import RunData

Row = Mapping[str, Any]
_STATUS_NOTES = {
    "running": "The run has no end: it is still going on, or it was killed; what was written is shown.",
    "incomplete": "The run is incomplete: a part of the planned load was not measured.",
    "interrupted": "The run was interrupted; what was measured until then is shown.",
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """
    The content of a report.

    Attributes:
        rows: Rows of levels.parquet, in the order they ran.
        findings: findings.json; empty where there is none.
        errors: Kind of error -> (requests that failed by it, one text of it or ""), measured requests only.
        notes: Sentences that a reader should know.
    """

    rows: list[dict[str, Any]]
    findings: dict[str, Any]
    errors: dict[str, tuple[int, str]]
    notes: list[str]


def report_figures(run: RunData) -> Figures:
    """
    Gather what a report shows.

    What the run wrote at its end is taken as it is; a run that was killed before that, or lost these files, is judged again from its rows.

    Raises:
        StoreError: a file of the run cannot be read.
    """
    findings = run.findings()
    rows = sorted(run.levels().to_pylist(), key=lambda row: int(row["level"]))
    if findings is not None and rows and run.info.status != "running":
        errors = _errors(run)
    else:
        verdict = judge_run(run)
        rows, findings, errors = verdict.rows, verdict.findings, verdict.errors
    notes = [_STATUS_NOTES[run.info.status]] if run.info.status in _STATUS_NOTES else []
    notes += list(run.info.notes)
    notes += [f"{name} was left out: {why}" for name, why in sorted(run.skipped.items())]
    return Figures(rows=rows, findings=findings, errors=errors, notes=notes)


def _errors(run: RunData) -> dict[str, tuple[int, str]]:
    counts: dict[str, tuple[int, str]] = {}
    for part in run.request_batches(columns=["phase", "error_kind", "error_text"]):
        failed = part.filter((pc.field("phase") == "measured") & pc.field("error_kind").is_valid())
        for kind, count, text in _by_kind(failed):
            before, example = counts.get(kind, (0, ""))
            counts[kind] = (before + count, example or text)
    return counts


def _by_kind(failed: pa.Table) -> list[tuple[str, int, str]]:
    if not failed.num_rows:
        return []
    grouped = failed.group_by("error_kind").aggregate([("phase", "count"), ("error_text", "max")])
    return [
        (row["error_kind"], row["phase_count"], row["error_text_max"] or "") for row in grouped.to_pylist()
    ]


def first_visits(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of the ladder: the first visit of every setting, by connections."""
    firsts = [row for row in rows if row["repeat"] == 0]
    return sorted(firsts, key=lambda row: (row["users_per_request"], row["connections"], row["level"]))


def row_at(rows: list[dict[str, Any]], connections: int | None) -> dict[str, Any] | None:
    """Return the first valid row with so many connections; None where there is none."""
    for row in rows:
        if row["valid"] and row["connections"] == connections:
            return row
    return None
