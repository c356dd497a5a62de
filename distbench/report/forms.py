"""The forms of a report that are printed (floor F4): text for people, Markdown for pages, JSON for programs."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable

from rich.console import Console

from distbench.report.compare import Compared, comparison_json, comparison_markdown, render_comparison
from distbench.report.figures import report_figures
from distbench.report.markdown import report_markdown
from distbench.report.terminal import render_report
from distbench.store.jsonio import dumps
from distbench.store.reader import RunData

_FILE_COLUMNS = 160


def report_text(run: RunData, form: str, *, to_file: bool) -> bytes:
    """
    Return a report to be printed.

    Args:
        run: The run.
        form: text | markdown | json.
        to_file: Whether it goes to a file: without colours, and wide.

    Raises:
        StoreError: a file of the run cannot be read.
    """
    forms: dict[str, Callable[[], bytes]] = {
        "text": lambda: _terminal(lambda console: render_report(run, console), to_file=to_file),
        "markdown": lambda: report_markdown(run).encode(),
        "json": lambda: report_json(run),
    }
    return forms[form]()


def report_json(run: RunData) -> bytes:
    """Return the whole report as one JSON object: run.json, levels, findings, errors and notes; null for what was not measured."""
    figures = report_figures(run)
    errors = {kind: {"requests": count, "text": text} for kind, (count, text) in figures.errors.items()}
    return dumps(
        {
            "run": run.uri,
            "info": run.info.to_json(),
            "levels": figures.rows,
            "findings": figures.findings,
            "errors": errors,
            "notes": figures.notes,
        }
    )


def comparison_text(compared: Compared, form: str, *, to_file: bool) -> bytes:
    """Return comparisons to be printed; arguments as of report_text."""
    forms: dict[str, Callable[[], bytes]] = {
        "text": lambda: _terminal(lambda console: render_comparison(compared, console), to_file=to_file),
        "markdown": lambda: comparison_markdown(compared).encode(),
        "json": lambda: dumps(comparison_json(compared)),
    }
    return forms[form]()


def _terminal(draw: Callable[[Console], None], *, to_file: bool) -> bytes:
    buffer = io.StringIO()
    screen = Console(file=sys.stdout)
    wanted = screen.is_terminal and not to_file
    console = Console(
        file=buffer,
        force_terminal=wanted,
        color_system="auto" if wanted else None,
        width=screen.width if wanted else _FILE_COLUMNS,
        highlight=False,
    )
    draw(console)
    return buffer.getvalue().encode(errors="replace")
