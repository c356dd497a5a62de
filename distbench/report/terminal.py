"""
Tables and sentences for a terminal (floor F4). Numbers come from levels.parquet and findings.json; nothing is computed here.

How a single number looks is cells.py's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from distbench.report.cells import Row, milliseconds, number, percent, rate, requests_cell, verdict_cell
from distbench.report.shapes_table import is_shapes, shapes_table
from distbench.store.reader import RunData

_FEW_SAMPLES = 100
_SEVERITY_STYLE = {"error": "bold red", "warning": "yellow", "info": "", "good": "green"}


def _marked_p99(row: Row, name: str) -> str:
    text = milliseconds(row[f"{name}_p99_s"])
    return f"{text}*" if text != "-" and row[f"{name}_n"] < _FEW_SAMPLES else text


def level_table(rows: Sequence[Row], width: int) -> Table:
    """
    Return the table of levels, with fewer columns on a narrow terminal.

    Args:
        rows: Rows of levels.parquet in the order they ran.
        width: Columns of the terminal.
    """
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    columns: list[tuple[str, Any, int]] = [  # heading, cell, least width of the terminal
        ("connections", lambda r: f"{r['connections']:,}" + (" again" if r["repeat"] else ""), 0),
        ("ok", requests_cell, 0),
        ("requests/s", lambda r: rate(r["request_rate"]), 0),
        ("output tokens/s", lambda r: rate(r["output_token_rate"]), 0),
        ("TTFT p50", lambda r: milliseconds(r["ttft_p50_s"]), 100),
        ("p99 ms", lambda r: _marked_p99(r, "ttft"), 100),
        ("TPOT p50", lambda r: milliseconds(r["tpot_p50_s"]), 112),
        ("p99 ms", lambda r: _marked_p99(r, "tpot"), 155),
        ("E2E p50", lambda r: milliseconds(r["e2e_p50_s"]), 145),
        ("p99 ms", lambda r: _marked_p99(r, "e2e"), 155),
        ("running", lambda r: number(r["running_mean"]), 132),
        ("waiting", lambda r: number(r["waiting_mean"]), 132),
        ("KV", lambda r: percent(r["kv_usage_mean"]), 175),
        ("prefix hits", lambda r: percent(r["prefix_hit_ratio"]), 175),
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


def few_samples_note(rows: Sequence[Row]) -> Text | None:
    """Return the footnote of marked quantiles, None where none is marked."""
    names = ("ttft", "tpot", "e2e")
    if any(row[f"{n}_n"] < _FEW_SAMPLES and row[f"{n}_p99_s"] is not None for row in rows for n in names):
        return Text("* fewer than 100 samples: a p99 of so few is close to their maximum", style="dim")
    return None


def error_lines(errors: Mapping[str, tuple[int, str]]) -> list[Text]:
    """Return one line per kind of error: how often, and one text of it."""
    return [
        Text(f"  {count:,} x {kind}" + (f": {example}" if example else ""), style="red")
        for kind, (count, example) in sorted(errors.items(), key=lambda item: -item[1][0])
    ]


def findings_block(findings: Mapping[str, Any]) -> RenderableType:
    """Return the findings as sentences, the headline first."""
    lines: list[Text] = []
    for finding in findings.get("findings", ()):
        style = _SEVERITY_STYLE.get(finding.get("severity", "info"), "")
        mark = {"error": "!", "warning": "!", "good": "+"}.get(finding.get("severity", "info"), "-")
        lines.append(Text(f"{mark} {finding['text']}", style=style))
    return Group(*lines)


def run_block(
    rows: Sequence[Row],
    findings: Mapping[str, Any],
    errors: Mapping[str, tuple[int, str]],
    notes: Sequence[str],
    width: int,
) -> RenderableType:
    """Return the last screen of a run: table, errors, findings, notes."""
    if is_shapes(rows):
        parts: list[RenderableType] = [shapes_table(rows, width)]
    else:
        footnote = few_samples_note(rows)
        parts = [level_table(rows, width), *([] if footnote is None else [footnote])]
    if errors:
        parts.extend([Text(""), Text("Failed requests", style="bold"), *error_lines(errors)])
    if findings.get("findings"):
        parts.extend([Text(""), Text("Findings", style="bold"), findings_block(findings)])
    if notes:
        parts.extend([Text(""), Text("Notes", style="bold"), *[Text(f"- {note}") for note in notes]])
    return Group(*parts)


def render_report(run: RunData, console: Console) -> None:
    """Print the report of a run directory."""
    from distbench.report.figures import report_figures

    figures = report_figures(run)
    console.print(f"Run {run.uri}: {run.info.status}", highlight=False)
    console.print(
        run_block(figures.rows, figures.findings, figures.errors, figures.notes, console.width),
        highlight=False,
    )
