"""The outcome of a run, as the command line and the Python API hand it out (floor F4)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """
    What came of a run; everything in it is in the run directory as well.

    Attributes:
        run: The run directory, path or URI.
        status: complete | incomplete | interrupted.
        exit_code: Of the command.
        rows: Rows of levels.parquet in the order they ran.
        findings: findings.json.
        errors: Kind of error -> (requests, one text), measured requests.
        notes: Sentences that a reader should know.
    """

    run: str
    status: str
    exit_code: int
    rows: Sequence[Mapping[str, Any]]
    findings: Mapping[str, Any]
    errors: Mapping[str, tuple[int, str]]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return one object for --json; no NaN in it."""
        return {
            "run": self.run,
            "status": self.status,
            "exit_code": self.exit_code,
            "levels": [dict(row) for row in self.rows],
            "findings": dict(self.findings),
            "errors": {kind: {"requests": n, "text": text} for kind, (n, text) in self.errors.items()},
            "notes": list(self.notes),
        }
