"""The report as Markdown, for pull requests and pages (floor F4)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from distbench.report.columns import shown_columns
from distbench.report.figures import Figures, report_figures
from distbench.report.words import headline
from distbench.store.reader import RunData

_MARKS = {"error": "**Error**", "warning": "**Warning**", "good": "**Good**", "info": "Note"}
_SPECIAL = str.maketrans({c: f"\\{c}" for c in "\\`*_[]<>|#~"} | {"\n": " ", "\r": " "})


def report_markdown(run: RunData) -> str:
    """
    Return the report of a run as Markdown with pipe tables.

    Raises:
        StoreError: a file of the run cannot be read.
    """
    figures = report_figures(run)
    said = headline(figures.rows, figures.findings)
    lines = [f"# distbench {run.info.command}: {said.verdict}", "", said.sentence]
    if said.advice:
        lines += ["", said.advice]
    lines += ["", f"Run `{run.uri}`, status {run.info.status}.", "", *_levels(figures)]
    lines += _section("Findings", _findings(figures))
    lines += _section("Failed requests", _errors(figures))
    lines += _section("Notes", [f"- {escape(note)}" for note in figures.notes])
    return "\n".join(lines) + "\n"


def escape(text: str) -> str:
    """Return text as one line in which Markdown and HTML see nothing of theirs; a server's words stay words."""
    return text.translate(_SPECIAL)


def table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], left: frozenset[int] = frozenset()
) -> list[str]:
    """Return the lines of a pipe table; numbers stand right, the columns in left stand left."""
    rules = [":--" if at in left else "--:" for at in range(len(headings))]
    lines = ["| " + " | ".join(headings) + " |", "|" + "|".join(rules) + "|"]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def _levels(figures: Figures) -> list[str]:
    if not figures.rows:
        return ["No level was finished."]
    columns = shown_columns(figures.rows)
    plain = ("level", "requests", "window", "rates", "client", "server", "verdict")
    headings = [c.heading if c.group in plain else f"{c.group} {c.heading}" for c in columns]
    cells = [[escape(c.text(row)) for c in columns] for row in figures.rows]
    lines = ["## Levels", "", *table(headings, cells)]
    if any(cell.endswith("\\*") for row in cells for cell in row):
        lines += ["", "\\* fewer than 100 samples: a p99 of so few is close to their maximum."]
    return lines


def _findings(figures: Figures) -> list[str]:
    return [
        f"- {_MARKS.get(str(f.get('severity')), 'Note')}: {escape(str(f.get('text', '')))}"
        for f in figures.findings.get("findings", ())
    ]


def _errors(figures: Figures) -> list[str]:
    if not figures.errors:
        return []
    ordered = sorted(figures.errors.items(), key=lambda item: -item[1][0])
    rows = [[escape(kind), f"{count:,}", escape(text)] for kind, (count, text) in ordered]
    return table(["kind", "requests", "an example"], rows, left=frozenset((0, 2)))


def _section(title: str, lines: list[str]) -> list[str]:
    return ["", f"## {title}", "", *lines] if lines else []
