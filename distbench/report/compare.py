"""Comparisons as text, Markdown and JSON (floor F4); the figures are made by analysis/compare.py."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from distbench.analysis.compare import Change, Comparison, Point, Side, compare, headline_points
from distbench.analysis.compare_bootstrap import BOOTSTRAP_COLUMNS
from distbench.analysis.compare_gate import GateResult, Outcome, judge_gates
from distbench.analysis.compare_metrics import SHOWN, Gate, Metric
from distbench.analysis.outcome import run_outcome
from distbench.errors import EXIT_OK, EXIT_SLO, EXIT_USAGE
from distbench.report.cells import milliseconds, rate
from distbench.report.markdown import escape, table
from distbench.store.reader import RunData, open_run

# What the small table of all settings shows of each.
SHORT = ("throughput", "ttft_p50", "ttft_p99", "tpot_p50", "e2e_p99")
_STYLES = {"better": "green", "worse": "bold red", "same": "", "unknown": "dim"}
_WORDS = {"better": "better", "worse": "worse", "same": "not significant", "unknown": "no interval"}
_GATE_STYLES = {
    Outcome.PASSED: "green",
    Outcome.REGRESSION: "bold red",
    Outcome.NOT_SIGNIFICANT: "yellow",
    Outcome.NOT_JUDGED: "yellow",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Compared:
    """
    All candidates against the first run.

    Attributes:
        comparisons: One for each candidate.
        gates: Results of all gates; empty where none was given.
    """

    comparisons: tuple[Comparison, ...]
    gates: tuple[GateResult, ...]

    @property
    def exit_code(self) -> int:
        """Return 3 for a regression, 2 where a gate could not be judged, else 0."""
        outcomes = {result.outcome for result in self.gates}
        if Outcome.REGRESSION in outcomes:
            return EXIT_SLO
        return EXIT_USAGE if Outcome.NOT_JUDGED in outcomes else EXIT_OK


def compare_runs(paths: Sequence[str], gates: Sequence[Gate] = ()) -> Compared:
    """
    Compare runs with the first of them.

    Args:
        paths: At least two run directories or URIs, the baseline first.
        gates: What to judge by.

    Raises:
        StoreError: one of them is no run directory.
    """
    sides = [_side(path, open_run(path)) for path in paths]
    comparisons = tuple(compare(sides[0], other) for other in sides[1:])
    results = tuple(result for comparison in comparisons for result in judge_gates(comparison, gates))
    return Compared(comparisons, results)


def _side(path: str, run: RunData) -> Side:
    target = run.info.extra.get("target")
    server = {f"server {k}": v for k, v in target.items()} if isinstance(target, Mapping) else {}
    outcome = run_outcome(run)
    return Side(
        name=path,
        rows=outcome.rows,
        findings=outcome.findings,
        plan=run.plan(),
        server={**server, **{f"version of {k}": v for k, v in run.info.versions.items()}},
        requests=lambda level: run.requests(level, BOOTSTRAP_COLUMNS),
    )


def figure(metric: Metric, value: float | None) -> str:
    """Return a figure with its unit."""
    if value is None:
        return "-"
    return f"{rate(value)}/s" if metric.is_rate else f"{milliseconds(value)} ms"


def percent_change(value: float | None) -> str:
    """Return a ratio of change as signed percent."""
    return "-" if value is None else f"{100 * value:+.1f}%"


def interval(change: Change) -> str:
    """Return the interval of a change."""
    if change.low is None:
        return "-"
    return f"{percent_change(change.low)} to {percent_change(change.high)}"


def word(change: Change) -> str:
    """Return the judgement of a change, and what its interval is from."""
    return _WORDS[change.judgement]


def shown_changes(point: Point) -> list[Change]:
    """Return the changes that a table of one point shows, in order; figures that say the same twice are left out."""
    changes = [point.changes[name] for name in SHOWN if name in point.changes]
    requests = point.changes.get("request_rate")
    return [
        c
        for c in changes
        if not (
            c.metric.name == "user_message_rate" and requests is not None and c.baseline == requests.baseline
        )
    ]


def render_comparison(compared: Compared, console: Console) -> None:
    """Print comparisons: differences of plan and server first, then figures, then gates."""
    for comparison in compared.comparisons:
        console.print(Text(f"{comparison.candidate} against {comparison.baseline}", style="bold"))
        for line in _plan_lines(comparison):
            console.print(line)
        full = headline_points(comparison)
        for point in full:
            console.print(Text(f"\n{point.label}", style="bold"))
            console.print(_point_table(point))
            for note in point.notes:
                console.print(Text(f"- {note}"))
        others = [point for point in comparison.points if point not in full]
        if others:
            console.print(Text("\nother settings (* is significant)", style="bold"))
            console.print(_settings_table(others))
            for note in dict.fromkeys(n for point in others for n in point.notes):
                console.print(Text(f"- {note}"))
        console.print()
    for result in compared.gates:
        console.print(Text(gate_line(result), style=_GATE_STYLES[result.outcome]))


def gate_line(result: GateResult) -> str:
    """Return a gate's result in one line."""
    return f"{result.outcome.replace('_', ' ')}: {result.gate.text} at {result.place}: {result.reason}"


def _plan_lines(comparison: Comparison) -> list[Text]:
    lines = [Text(note, style="yellow") for note in comparison.notes]
    if not comparison.differences:
        return [*lines, Text("Same workload, same plan, same server version.")]
    lines += [
        Text(f"  {d.aspect}: {d.key}: {_value(d.baseline)} -> {_value(d.candidate)}")
        for d in comparison.differences
    ]
    return lines


def _value(value: Any) -> str:
    return "not set" if value is None else value if isinstance(value, str) else json.dumps(value)


def _point_table(point: Point) -> Table:
    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for heading in ("", "baseline", "candidate", "change", "95% interval", ""):
        made.add_column(heading, justify="left" if not heading else "right")
    for change in shown_changes(point):
        cells = (
            change.metric.name,
            figure(change.metric, change.baseline),
            figure(change.metric, change.candidate),
            percent_change(change.ratio),
            interval(change),
            word(change),
        )
        made.add_row(*cells, style=_STYLES[change.judgement])
    return made


def _settings_table(points: Sequence[Point]) -> Table:
    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for heading in ("", *SHORT):
        made.add_column(heading, justify="left" if not heading else "right")
    for point in points:
        cells = [Text(point.label)]
        for name in SHORT:
            change = point.changes.get(name)
            style = "" if change is None else _STYLES[change.judgement]
            cells.append(Text(short_change(change), style=style))
        made.add_row(*cells)
    return made


def short_change(change: Change | None) -> str:
    """Return a change for a table of many, * where it is significant."""
    if change is None:
        return "-"
    return percent_change(change.ratio) + ("*" if change.significant else "")


def comparison_markdown(compared: Compared) -> str:
    """Return comparisons as Markdown."""
    lines: list[str] = []
    for comparison in compared.comparisons:
        lines += [f"## {escape(comparison.candidate)} against {escape(comparison.baseline)}", ""]
        lines += [f"**{escape(note)}**" for note in comparison.notes]
        rows = [
            [d.aspect.value, escape(d.key), escape(_value(d.baseline)), escape(_value(d.candidate))]
            for d in comparison.differences
        ]
        left = frozenset(range(4))
        if rows:
            lines += table(["differs", "setting", "baseline", "candidate"], rows, left)
        else:
            lines += ["Same workload, same plan, same server version."]
        for point in comparison.points:
            lines += ["", f"### {escape(point.label)}", "", *_markdown_table(point)]
            lines += ["", *[f"- {escape(note)}" for note in point.notes]] if point.notes else []
        lines.append("")
    if compared.gates:
        lines += ["## Gates", "", *[f"- {escape(gate_line(result))}" for result in compared.gates], ""]
    return "\n".join(lines)


def _markdown_table(point: Point) -> list[str]:
    rows = [
        [
            escape(c.metric.name),
            figure(c.metric, c.baseline),
            figure(c.metric, c.candidate),
            percent_change(c.ratio),
            interval(c),
            word(c),
        ]
        for c in shown_changes(point)
    ]
    headings = ["figure", "baseline", "candidate", "change", "95 % interval", "judgement"]
    return table(headings, rows, left=frozenset((0, 5)))


def comparison_json(compared: Compared) -> dict[str, Any]:
    """Return comparisons as one JSON object; ratios are candidate / baseline - 1, latencies seconds."""
    return {
        "comparisons": [
            {
                "baseline": c.baseline,
                "candidate": c.candidate,
                "same_workload": c.same_workload,
                "differences": [dataclasses.asdict(d) for d in c.differences],
                "notes": list(c.notes),
                "points": [_point_json(point) for point in c.points],
            }
            for c in compared.comparisons
        ],
        "gates": [
            {
                "gate": r.gate.text,
                "candidate": r.candidate,
                "place": r.place,
                "outcome": r.outcome.value,
                "reason": r.reason,
            }
            for r in compared.gates
        ],
        "exit_code": compared.exit_code,
    }


def _point_json(point: Point) -> dict[str, Any]:
    changes = {
        name: {
            "baseline": c.baseline,
            "candidate": c.candidate,
            "ratio": c.ratio,
            "interval": None if c.low is None else [c.low, c.high],
            "method": c.method,
            "judgement": c.judgement,
        }
        for name, c in point.changes.items()
    }
    return {
        "label": point.label,
        "is_peak": point.is_peak,
        "connections": point.connections,
        "notes": list(point.notes),
        "changes": changes,
    }
