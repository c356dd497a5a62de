"""
The table of a shapes run for a terminal (floor F4): packings side by side, by the user messages that they answer.

Numbers come from levels.parquet; nothing is computed here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.table import Table
from rich.text import Text

from distbench.report.cells import Row, milliseconds, number, percent, rate, requests_cell, verdict_cell

Cell = Callable[[Row], str | Text]


def is_shapes(rows: Sequence[Row]) -> bool:
    """Tell whether rows of levels.parquet compare packings."""
    return len({row["users_per_request"] for row in rows}) > 1


def shapes_table(rows: Sequence[Row], width: int) -> Table:
    """
    Return the table of the shapes, with fewer columns on a narrow terminal.

    Args:
        rows: Rows of levels.parquet in the order they ran.
        width: Columns of the terminal.
    """
    most = max(
        (row["user_message_rate"] or 0.0 for row in rows if row["verdict"] == "saturated"), default=None
    )
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    columns: list[tuple[str, Cell, int]] = [  # heading, cell, least width of the terminal
        ("packed", lambda r: f"{r['users_per_request']:,}", 0),
        ("connections", lambda r: f"{r['connections']:,}" + (" again" if r["repeat"] else ""), 0),
        ("messages/s", lambda r: _messages(r, most), 0),
        ("requests/s", lambda r: rate(r["request_rate"]), 110),
        ("output tokens/s", lambda r: rate(r["output_token_rate"]), 175),
        ("hits", lambda r: percent(_hits(r)), 0),
        ("KV mean", lambda r: percent(r["kv_usage_mean"]), 0),
        ("KV max", lambda r: percent(r["kv_usage_max"]), 118),
        ("preemptions", lambda r: number(r["preemptions"], 0), 90),
        ("clamped", _clamped, 98),
        ("running", lambda r: number(r["running_mean"]), 135),
        ("waiting", lambda r: number(r["waiting_mean"]), 135),
        ("prefill ms", lambda r: milliseconds(r["prefill_time_mean_s"]), 158),
        ("decode ms", lambda r: milliseconds(r["decode_time_mean_s"]), 158),
        ("E2E p50 ms", lambda r: milliseconds(r["e2e_p50_s"]), 190),
        ("ok", requests_cell, 200),
        ("verdict", verdict_cell, 0),
    ]
    shown = [column for column in columns if width >= column[2]]
    for heading, _, _ in shown:
        table.add_column(
            heading, justify="left" if heading == "verdict" else "right", no_wrap=heading != "verdict"
        )
    for row in rows:
        table.add_row(*[cell(row) for _, cell, _ in shown])
    return table


def _messages(row: Row, most: float | None) -> Text:
    """Return the rate of user messages, the highest of a full server in bold."""
    value = row["user_message_rate"]
    return Text(rate(value), style="bold green" if most and value == most else "")


def _hits(row: Row) -> float | None:
    """Return the prefix-cache hit ratio by the servers' counters, else by usage."""
    value: float | None = row["prefix_hit_ratio"]
    return row["cached_tokens_ratio"] if value is None else value


def _clamped(row: Row) -> Text:
    clamped, refused = row["requests_clamped"], row["requests_overflowed"]
    if clamped is None:
        return Text("-")
    text = Text(f"{clamped:,}", style="yellow" if clamped else "")
    if refused:
        text.append(f" {refused:,} refused", style="red")
    return text
