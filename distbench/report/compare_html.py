"""A comparison as one HTML file (floor F4)."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from distbench.analysis.compare import Change, Comparison, Point, headline_points
from distbench.analysis.compare_gate import Outcome
from distbench.report.charts import Chart, plain
from distbench.report.compare import (
    SHORT,
    Compared,
    _value,
    comparison_json,
    figure,
    gate_line,
    interval,
    percent_change,
    short_change,
    shown_changes,
    word,
)
from distbench.report.page import render_page
from distbench.report.theme import GREEN, MUTED, VERMILION, axis, layout

_TONES = {
    Outcome.PASSED: "good",
    Outcome.REGRESSION: "bad",
    Outcome.NOT_SIGNIFICANT: "warn",
    Outcome.NOT_JUDGED: "warn",
}
_COLOURS = {"better": GREEN, "worse": VERMILION, "same": MUTED, "unknown": MUTED}
_SYMBOLS = {"better": "triangle-up", "worse": "triangle-down", "same": "circle", "unknown": "circle-open"}


def comparison_html(compared: Compared) -> str:
    """Return comparisons as one self-contained HTML page."""
    charts = {
        f"changes-{number}-{place}": _changes_chart(point)
        for number, comparison in enumerate(compared.comparisons)
        for place, point in enumerate(headline_points(comparison))
    }
    sections = [("gates", "Gates")] if compared.gates else []
    sections += [(f"run-{n}", c.candidate) for n, c in enumerate(compared.comparisons)]
    context = {
        "title": "distbench compare",
        "kind": "compare",
        "sections": sections,
        "charts": charts,
        "verdict": _verdict(compared),
        "gates": [{"tone": _TONES[r.outcome], "text": gate_line(r)} for r in compared.gates],
        "comparisons": [_comparison(c) for c in compared.comparisons],
        "data": comparison_json(compared),
    }
    return render_page("compare.html.j2", context)


def _verdict(compared: Compared) -> dict[str, str]:
    outcomes = {result.outcome for result in compared.gates}
    if Outcome.REGRESSION in outcomes:
        return {
            "tone": "bad",
            "word": "regression",
            "sentence": "A gate was missed, and chance does not explain it.",
        }
    if Outcome.NOT_JUDGED in outcomes:
        return {"tone": "warn", "word": "not judged", "sentence": "At least one gate could not be judged."}
    if outcomes:
        return {"tone": "good", "word": "passed", "sentence": "No gate was missed beyond chance."}
    first = compared.comparisons[0]
    change = first.points[0].changes.get("throughput") if first.points else None
    if change is None or change.ratio is None:
        return {"tone": "plain", "word": "compared", "sentence": "The runs have no throughput in common."}
    told = {"better": "more", "worse": "less"}.get(change.judgement)
    tone = {"better": "good", "worse": "bad"}.get(change.judgement, "plain")
    sentence = (
        f"Throughput {percent_change(change.ratio)} ({interval(change)}) at the {first.points[0].label}"
    )
    return {"tone": tone, "word": told or word(change), "sentence": f"{sentence}."}


def _comparison(comparison: Comparison) -> dict[str, Any]:
    full = headline_points(comparison)
    return {
        "baseline": comparison.baseline,
        "candidate": comparison.candidate,
        "notes": comparison.notes,
        "differences": [
            (d.aspect.value, d.key, _value(d.baseline), _value(d.candidate)) for d in comparison.differences
        ],
        "full": [_point(point) for point in full],
        "short": SHORT,
        "points": [
            {
                "label": point.label,
                "cells": [(short_change(point.changes.get(n)), _tone(point.changes.get(n))) for n in SHORT],
            }
            for point in comparison.points
            if point not in full
        ],
        "point_notes": list(dict.fromkeys(n for point in comparison.points for n in point.notes)),
    }


def _tone(change: Change | None) -> str:
    return {"better": "yes", "worse": "no"}.get(change.judgement, "") if change else ""


def _point(point: Point) -> dict[str, Any]:
    return {
        "label": point.label,
        "rows": [
            {
                "name": c.metric.name,
                "baseline": figure(c.metric, c.baseline),
                "candidate": figure(c.metric, c.candidate),
                "change": percent_change(c.ratio),
                "interval": interval(c),
                "word": word(c),
                "method": {"repeats": "repeats", "time": "time blocks"}.get(c.method or "", "-"),
                "tone": _tone(c),
            }
            for c in shown_changes(point)
        ],
    }


def _changes_chart(point: Point) -> Chart:
    """Return the changes of one point with their intervals: what does not touch zero is significant."""
    changes = [c for c in shown_changes(point) if c.ratio is not None][::-1]
    made = go.Figure()
    made.add_scatter(
        x=[100 * (c.ratio or 0.0) for c in changes],
        y=[c.metric.name for c in changes],
        error_x={
            "type": "data",
            "symmetric": False,
            "array": [
                100 * ((c.high or 0.0) - (c.ratio or 0.0)) if c.high is not None else 0 for c in changes
            ],
            "arrayminus": [
                100 * ((c.ratio or 0.0) - (c.low or 0.0)) if c.low is not None else 0 for c in changes
            ],
            "color": MUTED,
            "thickness": 2,
            "width": 5,
        },
        mode="markers",
        marker={
            "size": 11,
            "color": [_COLOURS[c.judgement] for c in changes],
            "symbol": [_SYMBOLS[c.judgement] for c in changes],
        },
        hovertemplate="%{y}: %{x:+.2f} %<extra></extra>",
        showlegend=False,
    )
    made.update_layout(
        **layout(90 + 34 * len(changes), hovermode="closest"),
        xaxis=axis(
            "change of the candidate, %",
            rangemode="tozero",
            zeroline=True,
            zerolinecolor=MUTED,
            zerolinewidth=2,
        ),
        yaxis=axis(""),
    )
    return plain(made)
