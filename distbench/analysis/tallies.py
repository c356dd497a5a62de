"""What is counted of a level's requests (floor F3, pure): failures by kind, answers by target, stamps by who took them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from distbench.analysis.arrays import is_word, measured, rows_where

ERROR_COLUMNS = ("phase", "outcome", "error_kind", "http_status", "error_text")
"""What count_errors reads."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ErrorCount:
    """Failed requests of one kind: how many, and the text and status of one of them."""

    kind: str
    count: int
    http_status: int | None
    text: str | None


def count_errors(rows: pa.Table) -> tuple[ErrorCount, ...]:
    """Count the failed measured requests of a table by error_kind, with one example each."""
    is_failed = measured(rows) & is_word(rows, "outcome", "failed")
    failed = rows_where(rows, is_failed, ("error_kind", "http_status", "error_text"))
    counts = []
    for entry in _value_counts(failed["error_kind"]):
        kind = entry["values"] or "unknown"
        same = failed["error_kind"].combine_chunks().to_pylist().index(entry["values"])
        example = failed.slice(same, 1).to_pylist()[0]
        counts.append(
            ErrorCount(
                kind=kind,
                count=entry["counts"],
                http_status=example["http_status"],
                text=example["error_text"],
            )
        )
    return tuple(sorted(counts, key=lambda c: (-c.count, c.kind)))


def merged_errors(counts: Iterable[Sequence[ErrorCount]]) -> dict[str, tuple[int, str]]:
    """Add up the failures of several tables: kind -> (requests, one text of it or "")."""
    errors: dict[str, tuple[int, str]] = {}
    for part in counts:
        for error in part:
            count, text = errors.get(error.kind, (0, ""))
            errors[error.kind] = (count + error.count, text or error.text or "")
    return errors


def requests_by_target(rows: pa.Table) -> dict[str, int]:
    """Count the answered measured requests by target."""
    ok = rows_where(rows, measured(rows) & is_word(rows, "outcome", "ok"), ("target",))
    return {entry["values"]: entry["counts"] for entry in _value_counts(ok["target"])}


def _value_counts(column: pa.ChunkedArray[Any]) -> list[dict[str, Any]]:
    counted: Any = pc.value_counts(column)
    return list(counted.to_pylist())


def user_stamps_ratio(rows: pa.Table) -> float | None:
    """Return the share of the answered measured requests that the kernel did not stamp; None without one."""
    ok = measured(rows) & is_word(rows, "outcome", "ok")
    return float(is_word(rows, "stamp", "user")[ok].mean()) if ok.any() else None
