"""
Numbers and cells as people read them (floor F4): units of display, thousands separators, "-" for what was not measured.

Latencies become milliseconds here, and nowhere below.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.text import Text

from distbench.units import s_to_ms

Row = Mapping[str, Any]
"""A row of levels.parquet."""


def number(value: float | None, digits: int = 1) -> str:
    """Return a number for a table: thousands separated, None as "-"."""
    return "-" if value is None else f"{value:,.{digits}f}"


def rate(value: float | None) -> str:
    """Return a rate with about three significant digits."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def milliseconds(seconds: float | None) -> str:
    """Return seconds as ms with about three significant digits."""
    if seconds is None:
        return "-"
    value = s_to_ms(seconds)
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def percent(ratio: float | None) -> str:
    """Return a ratio as whole percent."""
    return "-" if ratio is None else f"{100 * ratio:.0f}%"


def requests_cell(row: Row) -> Text:
    """Return the answered requests, and in red what became of the others."""
    text = Text(f"{row['requests_ok']:,}")
    for word in ("failed", "cut", "dropped", "lost"):
        if row[f"requests_{word}"]:
            text.append(f" {row[f'requests_{word}']:,} {word}", style="red")
    return text


def verdict_cell(row: Row) -> Text:
    """Return verdict and limit in words."""
    verdict = row["verdict"] or "-"
    style = {"saturated": "green", "client_limited": "bold red", "unstable": "yellow"}.get(verdict, "")
    text = Text(verdict.replace("_", " "), style=style)
    if row["limit"] not in (None, "none_found", "client"):
        text.append(f": {row['limit'].replace('_', ' ')}")
    if not row["valid"]:
        text.append(", not valid", style="yellow")
    return text
