"""
Charts over levels: each value is one of levels.parquet or findings.json, unrounded (floor F4).

A chart is a mapping in Plotly's terms, made through its Python package, which checks it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from distbench.report.figures import first_visits
from distbench.report.theme import (
    BAND,
    BLUE,
    GREEN,
    MUTED,
    PAST,
    SERIES,
    VERMILION,
    axis,
    layout,
    log_axis,
    log_connections,
    series_style,
)
from distbench.units import s_to_ms

Rows = list[dict[str, Any]]
Chart = dict[str, Any]


def capacity_chart(rows: Rows, findings: Mapping[str, Any]) -> Chart:
    """Return throughput over connections with peak, knee, their intervals and the region past the ceiling."""
    figure = go.Figure()
    shapes = sorted({row["users_per_request"] for row in rows})
    for number, users in enumerate(shapes):
        mine = [row for row in rows if row["users_per_request"] == users]
        _add_ladder(figure, mine, number, f"{users} messages/request" if len(shapes) > 1 else "first visit")
        repeats = [row for row in mine if row["repeat"] > 0]
        if repeats:
            style = {"color": SERIES[number % len(SERIES)], "size": 8, "symbol": "circle-open"}
            _add_points(figure, repeats, "repeats", style)
    invalid = [row for row in rows if not row["valid"] and row["output_token_rate"] is not None]
    if invalid:
        _add_points(figure, invalid, "not valid", {"color": MUTED, "size": 10, "symbol": "x-thin-open"})
    _add_point(figure, findings.get("knee"), "knee", GREEN, "diamond")
    _add_point(figure, findings.get("peak"), "peak", VERMILION, "star")
    figure.update_layout(
        **layout(420, hovermode="closest"),
        xaxis=log_connections([row["connections"] for row in rows]),
        yaxis=axis("output tokens/s", rangemode="tozero", tickformat=",~s"),
    )
    _shade_past(figure, rows, findings)
    return plain(figure)


def _hover(row: Mapping[str, Any]) -> str:
    texts = [f"<b>{row['connections']:,} connections</b>"]
    if row["repeat"]:
        texts.append(f"repeat {row['repeat']}")
    for name, unit in (("output_token_rate", "output tokens/s"), ("request_rate", "requests/s")):
        texts.append("-" if row[name] is None else f"{row[name]:,.4g} {unit}")
    for name in ("ttft", "tpot"):
        value = row[f"{name}_p50_s"]
        if value is not None:
            texts.append(f"{name.upper()} p50 {s_to_ms(value):,.4g} ms")
    return "<br>".join(texts)


def _add_ladder(figure: Any, rows: Rows, number: int, name: str) -> None:
    ladder = first_visits(rows)
    figure.add_scatter(
        x=[row["connections"] for row in ladder],
        y=[row["output_token_rate"] for row in ladder],
        customdata=[row["level"] for row in ladder],
        text=[_hover(row) for row in ladder],
        hovertemplate="%{text}<extra></extra>",
        mode="lines+markers",
        name=name,
        **series_style(number),
    )


def _add_points(figure: Any, rows: Rows, name: str, marker: dict[str, Any]) -> None:
    figure.add_scatter(
        x=[row["connections"] for row in rows],
        y=[row["output_token_rate"] for row in rows],
        customdata=[row["level"] for row in rows],
        text=[_hover(row) for row in rows],
        hovertemplate="%{text}<extra></extra>",
        mode="markers",
        name=name,
        marker={**marker, "line": {"width": 1.75}},
    )


def _add_point(figure: Any, point: Mapping[str, Any] | None, name: str, colour: str, symbol: str) -> None:
    if not point or point.get("output_token_rate") is None:
        return
    rate, interval = point["output_token_rate"], point.get("interval")
    error: dict[str, Any] = {"visible": False}
    if interval and None not in interval:
        error = {
            "visible": True,
            "type": "data",
            "symmetric": False,
            "array": [interval[1] - rate],
            "arrayminus": [rate - interval[0]],
            "color": colour,
            "thickness": 2,
            "width": 7,
        }
    span = f"<br>{interval[0]:,.4g} to {interval[1]:,.4g}" if error["visible"] and interval else ""
    figure.add_scatter(
        x=[point["connections"]],
        y=[rate],
        error_y=error,
        mode="markers+text",
        text=[name],
        textposition="bottom right" if name == "knee" else "top left",
        textfont={"color": colour, "size": 13},
        hovertemplate=f"<b>{name}</b>: {rate:,.4g} output tokens/s at {point['connections']:,}{span}<extra></extra>",
        name=name,
        marker={"color": colour, "size": 14, "symbol": symbol},
    )


def _shade_past(figure: Any, rows: Rows, findings: Mapping[str, Any]) -> None:
    """Shade what lies past the peak, where the ladder went on and the peak is a ceiling and no lower bound."""
    peak = findings.get("peak")
    last = max((row["connections"] for row in rows), default=0)
    if not peak or findings.get("lower_bound") or last <= peak["connections"]:
        return
    is_log = figure.layout.xaxis.type == "log"
    figure.add_shape(
        type="rect",
        xref="x",
        yref="paper",
        x0=peak["connections"],
        x1=last,
        y0=0,
        y1=1,
        fillcolor=PAST,
        layer="below",
        line={"width": 0},
    )
    figure.add_annotation(
        # Plotly wants the exponent here, where it wants the value everywhere else.
        x=math.log10(last) if is_log else last,
        y=0,
        yref="paper",
        xanchor="right",
        yanchor="bottom",
        text="past the ceiling",
        showarrow=False,
        font={"color": MUTED, "size": 12},
    )


def latency_throughput_chart(rows: Rows) -> Chart:
    """Return TTFT and TPOT against throughput, in the order of connections: where the lines turn up, waiting begins."""
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.06)
    ladder = [row for row in first_visits(rows) if row["output_token_rate"] is not None]
    for place, name in ((1, "ttft"), (2, "tpot")):
        for number, quantile in enumerate(("p50", "p99")):
            figure.add_scatter(
                x=[row["output_token_rate"] for row in ladder],
                y=[_ms(row[f"{name}_{quantile}_s"]) for row in ladder],
                customdata=[row["connections"] for row in ladder],
                hovertemplate="%{customdata:,} connections<br>%{x:,.4~g} tokens/s, %{y:,.4~g} ms"
                f"<extra>{name.upper()} {quantile}</extra>",
                mode="lines+markers",
                name=quantile,
                legendgroup=quantile,
                showlegend=place == 1,
                row=place,
                col=1,
                **series_style(number),
            )
    figure.update_layout(**layout(460, hovermode="closest"))
    figure.update_xaxes(axis("", rangemode="tozero", tickformat=",~s"))
    figure.update_xaxes(title_text="output tokens/s", row=2, col=1)
    for place, name in ((1, "TTFT ms"), (2, "TPOT ms")):
        shown = [_ms(row[f"{name[:4].lower()}_{q}_s"]) for row in ladder for q in ("p50", "p99")]
        figure.update_yaxes(log_axis(name, shown), row=place, col=1)
    return plain(figure)


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else s_to_ms(seconds)


def latency_chart(rows: Rows, name: str) -> Chart:
    """
    Return the quantiles of one latency over connections.

    Args:
        rows: Rows of levels.parquet.
        name: ttft | tpot | e2e.
    """
    ladder = first_visits(rows)
    figure = go.Figure()
    for number, quantile in enumerate(("p50", "p90", "p99")):
        figure.add_scatter(
            x=[row["connections"] for row in ladder],
            y=[_ms(row[f"{name}_{quantile}_s"]) for row in ladder],
            hovertemplate="%{y:,.4~g} ms",
            mode="lines+markers",
            name=quantile,
            **series_style(number),
        )
    figure.update_layout(
        **layout(280),
        xaxis=log_connections([row["connections"] for row in ladder]),
        yaxis=log_axis(
            f"{name.upper()} ms", [_ms(row[f"{name}_{q}_s"]) for row in ladder for q in ("p50", "p99")]
        ),
    )
    return plain(figure)


SHAPE_PANELS = (
    ("user_message_rate", "user messages/s", 1.0, ",~s"),
    ("output_token_rate", "output tokens/s", 1.0, ",~s"),
    ("prefix_hit_ratio", "prefix hits %", 100.0, ",.0f"),
    ("kv_usage_max", "KV use, max %", 100.0, ",.0f"),
    ("preemptions", "preemptions", 1.0, ",d"),
    ("ttft_p50_s", "TTFT p50 ms", 1000.0, ",~g"),
    ("tpot_p50_s", "TPOT p50 ms", 1000.0, ",~g"),
    ("e2e_p50_s", "E2E p50 ms", 1000.0, ",~g"),
)


def shapes_chart(rows: Rows) -> Chart:
    """Return the packings side by side, one panel a figure; levels with the same packing stand beside each other."""
    ladder = [row for row in first_visits(rows) if row["requests_ok"]]
    panels = [p for p in SHAPE_PANELS if any(row[p[0]] is not None for row in ladder)]
    labels = [f"{row['users_per_request']} x {row['connections']:,}" for row in ladder]
    figure = make_subplots(rows=max(1, len(panels)), cols=1, shared_xaxes=True, vertical_spacing=0.035)
    for place, (name, title, factor, tickformat) in enumerate(panels, start=1):
        figure.add_bar(
            x=labels,
            y=[None if row[name] is None else row[name] * factor for row in ladder],
            marker={
                "color": [BLUE if row["verdict"] == "saturated" else MUTED for row in ladder],
                "line": {"width": 0},
            },
            hovertemplate="%{x}: %{y:,.4~g}<extra></extra>",
            name=title,
            showlegend=False,
            row=place,
            col=1,
        )
        figure.update_yaxes(
            axis(title, tickformat=tickformat, nticks=4, rangemode="tozero"), row=place, col=1
        )
    figure.update_layout(**layout(120 + 120 * len(panels), hovermode="closest", bargap=0.35))
    figure.update_xaxes(axis("", type="category", linecolor=BAND))
    figure.update_xaxes(title_text="messages per request x connections", row=max(1, len(panels)), col=1)
    return plain(figure)


def plain(figure: Any) -> Chart:
    """Return a figure as a mapping without Plotly's default template, which would be repeated in each chart."""
    made = figure.to_plotly_json()
    made["layout"].pop("template", None)
    return {"data": list(made["data"]), "layout": made["layout"]}


def cumulative_chart(
    quantiles: Mapping[int, Mapping[str, Sequence[float]]], chosen: Rows, name: str
) -> Chart:
    """
    Return the cumulative share of requests over one latency, for a few levels.

    Args:
        quantiles: Level -> latency -> seconds at each of spread.SHARES.
        chosen: Rows of the levels to show.
        name: ttft | tpot | e2e.
    """
    from distbench.report.spread import SHARES

    figure = go.Figure()
    shown = [row for row in chosen if name in quantiles.get(row["level"], {})]
    for number, row in enumerate(shown):
        style = series_style(number)
        figure.add_scatter(
            x=[s_to_ms(v) for v in quantiles[row["level"]][name]],
            y=[100 * share for share in SHARES],
            hovertemplate="%{y:.4~g} % within %{x:,.4~g} ms",
            mode="lines",
            name=f"{row['connections']:,}",
            line=style["line"],
        )
    figure.update_layout(
        **layout(280, hovermode="closest"),
        xaxis=log_axis(
            f"{name.upper()} ms", [s_to_ms(v) for row in shown for v in quantiles[row["level"]][name]]
        ),
        yaxis=axis("% of requests", range=[0, 101]),
    )
    return plain(figure)
