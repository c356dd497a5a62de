"""
What came of a run, for whoever reads it later (floor F3): the one answer that report, compare, export and the Python API share.

What the run wrote at its end is taken as it is. A run that still goes on, was killed before its end, or lost these files is judged from
its rows, by the same code that would have judged it.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pyarrow as pa

from distbench.analysis.judge import RunVerdict, judge_run
from distbench.analysis.level_row import LevelRow, to_table
from distbench.analysis.tallies import ERROR_COLUMNS, count_errors, merged_errors
from distbench.store.reader import RunData


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """
    A run's levels and findings.

    Attributes:
        rows: Of levels.parquet, in the order they ran.
        findings: findings.json; empty where there is no level.
        verdict: Where the run had to be judged; None: it is what the run wrote.
    """

    rows: list[LevelRow]
    findings: dict[str, Any]
    verdict: RunVerdict | None = None

    def table(self) -> pa.Table:
        """Return the rows in the schema LEVELS."""
        return to_table(self.rows)


def run_outcome(run: RunData) -> RunOutcome:
    """
    Return what came of a run.

    Raises:
        StoreError: a file of the run cannot be read.
    """
    findings = run.findings()
    rows = sorted(run.levels().to_pylist(), key=lambda row: int(row["level"]))
    if findings is not None and rows and run.info.status != "running":
        return RunOutcome(rows=rows, findings=findings)
    verdict = judge_run(run)
    return RunOutcome(rows=verdict.rows, findings=verdict.findings, verdict=verdict)


def run_errors(run: RunData, outcome: RunOutcome) -> dict[str, tuple[int, str]]:
    """Return kind of failure -> (measured requests that failed by it, one text of it or ""), over all levels."""
    if outcome.verdict is not None:
        return outcome.verdict.errors
    return merged_errors(count_errors(part) for part in run.request_batches(columns=ERROR_COLUMNS))
