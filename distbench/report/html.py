"""The report as one HTML file (floor F4): gathers what the template shows. Charts hold aggregates only, never raw rows."""

from __future__ import annotations

import datetime
import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from distbench.report.cells import milliseconds, rate
from distbench.report.charts import (
    Chart,
    capacity_chart,
    cumulative_chart,
    latency_chart,
    latency_throughput_chart,
    shapes_chart,
)
from distbench.report.charts_time import CLIENT_PANELS, timeline_chart
from distbench.report.columns import Column, shown_columns
from distbench.report.figures import Figures, first_visits, report_figures, row_at
from distbench.report.page import render_page
from distbench.report.reconciliation import reconcile_levels
from distbench.report.spread import Spread, client_health, make_spread
from distbench.report.timeline import Timeline, make_timeline
from distbench.report.words import LIMITS, headline, plural
from distbench.store.reader import RunData
from distbench.units import ns_to_s

Row = Mapping[str, Any]
_MAX_CLIENTS = 64
_TONES = {"error": "bad", "warning": "warn", "good": "good", "info": "plain"}
# What is behind these, and is neither the limit nor a warning, is folded.
_SHOWN_FINDINGS = 3
_GRAVE = ("error", "warning")
_SECTIONS = {
    "findings": "Findings",
    "capacity": "Capacity",
    "shapes": "Packing",
    "latency": "Latency",
    "timeline": "Timeline",
    "levels": "Levels",
    "clients": "Clients",
    "targets": "Targets",
    "errors": "Errors",
    "reconcile": "Reconciliation",
    "plan": "Plan",
}


def report_html(run: RunData) -> str:
    """
    Return the report of a run as one self-contained HTML page.

    Raises:
        StoreError: a file of the run cannot be read.
    """
    figures = report_figures(run)
    spread = make_spread(run, figures.rows)
    samples = run.clients()
    server = run.server()
    timeline = make_timeline(samples, server)
    charts = _charts(run, figures, spread, timeline)
    health = client_health(samples, figures.rows)
    optional = {
        "capacity": "capacity",
        "shapes": "shapes",
        "latency": "latency-throughput",
        "timeline": "timeline",
    }
    shown, folded = _fold(figures.findings.get("findings", ()))
    context = {
        "title": f"distbench {run.info.command}: {headline(figures.rows, figures.findings).verdict}",
        "kind": "report",
        "sections": [(i, name) for i, name in _SECTIONS.items() if optional.get(i, "") in ("", *charts)],
        "run": _run(run),
        "headline": headline(figures.rows, figures.findings),
        "keys": _keys(figures),
        "findings": [_finding(f) for f in shown],
        "more_findings": [_finding(f) for f in folded],
        "notes": figures.notes,
        "charts": charts,
        "bin_s": f"{timeline.bin_s:g}",
        "has_server": timeline.has("running", "waiting", "kv_usage"),
        "has_gpu": timeline.has("gpu_util"),
        "clients": health[:_MAX_CLIENTS],
        "more_clients": max(0, len(health) - _MAX_CLIENTS),
        "client_sentence": _client_sentence(figures.findings),
        "targets": spread.targets,
        "errors": [
            {"kind": kind, "count": count, "text": text}
            for kind, (count, text) in sorted(figures.errors.items(), key=lambda item: -item[1][0])
        ],
        "reconcile": reconcile_levels(
            figures.rows, spread.sums, server, {int(e["level"]): e for e in run.info.levels}, _model(run)
        ),
        "plan": _pairs(run.plan()),
        "environment": _environment(run),
        "level_rows": figures.rows,
        "raw_findings": figures.findings,
        **_level_table(figures),
    }
    return render_page("report.html.j2", context)


def _charts(run: RunData, figures: Figures, spread: Spread, timeline: Timeline) -> dict[str, Chart]:
    rows, charts = figures.rows, {}
    measured = [row for row in rows if row["requests_ok"] and row["output_token_rate"] is not None]
    if measured and run.info.command == "shapes":
        # Curves over connections would join different packings: the panels of the packing chart take their place.
        charts["shapes"] = shapes_chart(rows)
    elif measured:
        if len(measured) > 1:
            charts["capacity"] = capacity_chart(rows, figures.findings)
        charts["latency-throughput"] = latency_throughput_chart(rows)
        telling = _telling_rows(figures)
        for name in ("ttft", "tpot", "e2e"):
            charts[f"latency-{name}"] = latency_chart(rows, name)
            charts[f"cumulative-{name}"] = cumulative_chart(spread.quantiles, telling, name)
    if timeline.seconds:
        charts["timeline"] = timeline_chart(timeline, rows)
        charts["clients"] = timeline_chart(timeline, rows, CLIENT_PANELS)
    return charts


def _telling_rows(figures: Figures) -> list[dict[str, Any]]:
    """Return the first, knee, peak and last level: what the cumulative charts compare."""
    ladder = [row for row in first_visits(figures.rows) if row["requests_ok"]]
    points = [figures.findings.get(name) or {} for name in ("knee", "peak")]
    chosen = [*ladder[:1], *[row_at(ladder, point.get("connections")) for point in points], *ladder[-1:]]
    by_level = {row["level"]: row for row in chosen if row is not None}
    return sorted(by_level.values(), key=lambda row: int(row["connections"]))


def _run(run: RunData) -> dict[str, str]:
    return {
        "command": run.info.command,
        "started": _time(run.info.epoch_wall_ns),
        "uri": run.uri,
        "model": _model(run) or "-",
        "status": run.info.status,
    }


def _model(run: RunData) -> str | None:
    target = run.info.extra.get("target")
    told = target.get("model") if isinstance(target, Mapping) else None
    return told or run.plan().get("model")


def _time(wall_ns: int | None) -> str:
    if not wall_ns:
        return "-"
    return f"{datetime.datetime.fromtimestamp(ns_to_s(wall_ns), datetime.UTC):%Y-%m-%d %H:%M:%S} UTC"


def _key(name: str, value: str, detail: str = "") -> dict[str, str]:
    return {"name": name, "value": value, "detail": detail}


def _keys(figures: Figures) -> list[dict[str, str]]:
    """Return the figures at the peak; at the fastest level where no peak was named."""
    findings = figures.findings
    answered = [row for row in figures.rows if row["requests_ok"] and row["output_token_rate"] is not None]
    if not answered:
        return []
    peak = findings.get("peak") or {}
    row = row_at(figures.rows, peak.get("connections")) or max(answered, key=lambda r: r["output_token_rate"])
    point = peak if peak.get("output_token_rate") is not None else row
    low, high = peak.get("interval") or (None, None)
    span = "" if low is None or low == high else f"{rate(low)} to {rate(high)}"
    keys = [
        _key("output tokens/s", rate(point["output_token_rate"]), span),
        _key("requests/s", rate(point["request_rate"])),
        _key(
            "connections",
            f"{row['connections']:,}",
            f"{plural(row['clients'], 'client')}, {plural(row['targets'], 'target')}",
        ),
    ]
    knee = findings.get("knee")
    if knee:
        keys.append(_key("knee", f"{knee['connections']:,}", f"{rate(knee['output_token_rate'])} tokens/s"))
    for name in ("ttft", "tpot", "e2e"):
        if row[f"{name}_p50_s"] is not None:
            detail = f"p99 {milliseconds(row[f'{name}_p99_s'])} ms"
            keys.append(_key(f"{name.upper()} p50", f"{milliseconds(row[f'{name}_p50_s'])} ms", detail))
    if row["goodput_rate"] is not None:
        keys.append(_key("goodput", f"{rate(row['goodput_rate'])}/s", "requests within every SLO"))
    limit = findings.get("limit")
    if limit and limit != "none_found":
        keys.append(_key("limit", limit.replace("_", " "), LIMITS.get(limit, "")))
    return keys


def _fold(
    findings: Sequence[Mapping[str, Any]],
) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """Divide findings into those shown at once, the limit and every warning among them, and those folded: the curve is to be in sight."""
    is_shown = [
        place < _SHOWN_FINDINGS or finding.get("severity") in _GRAVE or finding.get("kind") == "limit"
        for place, finding in enumerate(findings)
    ]
    shown = [finding for finding, yes in zip(findings, is_shown, strict=True) if yes]
    return shown, [finding for finding, yes in zip(findings, is_shown, strict=True) if not yes]


def _finding(finding: Mapping[str, Any]) -> dict[str, Any]:
    severity = str(finding.get("severity", "info"))
    return {
        "tone": _TONES.get(severity, "plain"),
        "word": f"{severity}: {str(finding.get('kind', 'finding')).replace('_', ' ')}",
        "text": finding.get("text", ""),
        "evidence": _pairs(finding.get("evidence") or {}),
    }


def _client_sentence(findings: Mapping[str, Any]) -> str:
    client = findings.get("client")
    if not client:
        return "Whether the clients were the limit was not judged."
    verdict = (
        "The clients were the limit in at least one level."
        if client.get("limited")
        else "The clients were not the limit."
    )
    evidence = "; ".join(_text(item) for item in client.get("evidence") or ())
    return f"{verdict} {evidence[:1].upper()}{evidence[1:]}." if evidence else verdict


def _environment(run: RunData) -> list[tuple[str, str]]:
    info = run.info
    pairs: list[tuple[str, Any]] = [
        ("started", _time(info.epoch_wall_ns)),
        ("ended", _time(info.ended_wall_ns)),
        ("status", info.status),
        *[(f"version of {name}", version) for name, version in info.versions.items()],
        *[(f"clients on {host}", count) for host, count in info.clients_per_host.items()],
        *[(f"client {n}", host) for n, host in enumerate(info.hosts[:_MAX_CLIENTS])],
        *[
            (f"clock offset {n}, start", offset)
            for n, offset in enumerate(info.clock_offsets_start[:_MAX_CLIENTS])
        ],
        *[(f"seed of {name}", seed) for name, seed in info.seeds.items()],
        *[(name, value) for name, value in info.extra.items()],
    ]
    return [(name, _text(value)) for name, value in pairs]


def _pairs(values: Any) -> list[tuple[str, str]]:
    if isinstance(values, Mapping):
        return [(str(name), _text(value)) for name, value in values.items()]
    if isinstance(values, list | tuple):
        return [(str(number), _text(value)) for number, value in enumerate(values, start=1)]
    return [("value", _text(values))]


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return f"{value:,.6g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_text(item)}" for name, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(_text(item) for item in value)
    return json.dumps(value)


def _level_table(figures: Figures) -> dict[str, Any]:
    columns = shown_columns(figures.rows)
    groups = [
        {"name": name, "span": len(list(members))}
        for name, members in itertools.groupby(columns, key=lambda column: column.group)
    ]
    peak = (figures.findings.get("peak") or {}).get("connections")
    levels = [_level(row, columns, peak) for row in figures.rows]
    few = any(cell["text"].endswith("*") for level in levels for cell in level["cells"])
    return {"columns": columns, "level_groups": groups, "levels": levels, "few_samples": few}


def _level(row: Row, columns: list[Column], peak: int | None) -> dict[str, Any]:
    classes = ["best"] if row["connections"] == peak else []
    classes += [] if row["valid"] else ["invalid"]
    cells = [
        {
            "name": c.name,
            "text": c.text(row),
            "exact": None if row[c.name] is None else json.dumps(row[c.name]),
        }
        for c in columns
    ]
    reason = None if row["valid"] else row["invalid_reason"] or "no reason was given"
    return {"classes": " ".join(classes), "cells": cells, "reason": reason, "number": row["level"]}
