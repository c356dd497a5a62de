"""
What every form of a report shows, read once from a run directory (floor F4).

Terminal, Markdown, JSON and HTML take their rows, findings, errors and notes from here, so that no two of them disagree.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from distbench.analysis.outcome import run_errors, run_outcome
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

    Raises:
        StoreError: a file of the run cannot be read.
    """
    outcome = run_outcome(run)
    notes = [_STATUS_NOTES[run.info.status]] if run.info.status in _STATUS_NOTES else []
    notes += list(run.info.notes)
    notes += [f"{name} was left out: {why}" for name, why in sorted(run.skipped.items())]
    return Figures(rows=outcome.rows, findings=outcome.findings, errors=run_errors(run, outcome), notes=notes)


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
