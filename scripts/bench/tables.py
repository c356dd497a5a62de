"""Medians of repeated measurements, and tables of them on a terminal."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any


def median(values: Iterable[float | None]) -> float | None:
    """Return the median of what was measured; None where nothing was."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def spread(values: Iterable[float | None]) -> float | None:
    """Return the range of the readings as a share of their median; None below two of them."""
    known = [value for value in values if value is not None]
    if len(known) < 2 or not statistics.median(known):
        return None
    return (max(known) - min(known)) / statistics.median(known)


def ratio(value: float | None, base: float | None) -> float | None:
    """Return how many times the base a value is; None where one of them is not known, or the base is no positive number."""
    return None if value is None or base is None or base <= 0 else value / base


def shown(value: Any, digits: int = 2) -> str:
    """Return a cell's text; "-" for what was not measured."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.{digits}f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; the first column is text, the others are numbers."""
    widths = [max(len(row[at]) for row in (columns, *rows)) for at in range(len(columns))]
    for row in (columns, ["-" * width for width in widths], *rows):
        cells = [
            row[0].ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
        ]
        print("  ".join(cells).rstrip())


def machine() -> dict[str, Any]:
    """Describe where a measurement was made, as far as its figures depend on it."""
    return {
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "load_1min": os.getloadavg()[0],
    }


def save(path: Path | None, result: dict[str, Any]) -> None:
    """Write a result as JSON; None: nowhere."""
    if path is not None:
        path.write_text(json.dumps({"machine": machine(), **result}, indent=2) + "\n")
