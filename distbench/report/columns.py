"""The columns of the level table, for Markdown and HTML (floor F4, pure)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from distbench.report.cells import milliseconds, number, percent, rate

Row = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Column:
    """
    One column of a table of levels.

    Attributes:
        name: Column of levels.parquet.
        group: Heading above it.
        heading: Short name with its unit.
        show: Turns the value into text; None prints as "-".
    """

    name: str
    group: str
    heading: str
    show: Callable[[Any], str]

    def text(self, row: Row) -> str:
        """Return the cell of a row; a p99 of fewer than 100 samples is marked with *."""
        shown = self.show(row[self.name])
        if not self.name.endswith("_p99_s") or shown == "-":
            return shown
        samples = row.get(f"{self.name.removesuffix('_p99_s')}_n")
        return f"{shown}*" if samples is not None and samples < 100 else shown


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _words(value: str | None) -> str:
    return "-" if value is None else value.replace("_", " ")


def _yes(value: bool | None) -> str:
    return "-" if value is None else "yes" if value else "no"


def _quantiles(name: str, heading: str) -> list[Column]:
    return [Column(f"{name}_{q}_s", heading, f"{q} ms", milliseconds) for q in ("p50", "p90", "p99")]


LEVEL_COLUMNS: tuple[Column, ...] = (
    Column("level", "level", "no.", _count),
    Column("connections", "level", "connections", _count),
    Column("repeat", "level", "repeat", _count),
    Column("users_per_request", "level", "messages/request", _count),
    Column("requests_ok", "requests", "ok", _count),
    Column("requests_failed", "requests", "failed", _count),
    Column("requests_clamped", "requests", "clamped", _count),
    Column("window_s", "window", "seconds", number),
    Column("request_rate", "rates", "requests/s", rate),
    Column("output_token_rate", "rates", "output tokens/s", rate),
    Column("total_token_rate", "rates", "all tokens/s", rate),
    Column("user_message_rate", "rates", "messages/s", rate),
    Column("goodput_rate", "rates", "goodput/s", rate),
    *_quantiles("ttft", "TTFT"),
    *_quantiles("tpot", "TPOT"),
    *_quantiles("e2e", "E2E"),
    Column("in_flight_mean", "client", "in flight", number),
    Column("client_cpu_max", "client", "CPU", percent),
    Column("client_lag_p99_s", "client", "lag p99 ms", milliseconds),
    Column("running_mean", "server", "running", number),
    Column("waiting_mean", "server", "waiting", number),
    Column("kv_usage_mean", "server", "KV mean", percent),
    Column("kv_usage_max", "server", "KV max", percent),
    Column("prefix_hit_ratio", "server", "prefix hits", percent),
    Column("preemptions", "server", "preemptions", lambda v: number(v, 0)),
    Column("gpu_util_mean", "GPU", "busy", percent),
    Column("sm_active_mean", "GPU", "SM active", percent),
    Column("verdict", "verdict", "verdict", _words),
    Column("limit", "verdict", "limit", _words),
    Column("valid", "verdict", "valid", _yes),
)
_ALWAYS = frozenset(("level", "connections", "requests_ok", "output_token_rate", "verdict"))


def shown_columns(rows: Sequence[Row]) -> list[Column]:
    """Return the columns that say something of these rows: those without any value, or with one value that goes without saying, are left out."""
    return [
        column for column in LEVEL_COLUMNS if column.name in _ALWAYS or _says_something(column.name, rows)
    ]


def _says_something(name: str, rows: Sequence[Row]) -> bool:
    plain = {"repeat": 0, "users_per_request": 1, "requests_failed": 0, "requests_clamped": 0, "valid": True}
    return any(row[name] is not None and row[name] != plain.get(name) for row in rows)
