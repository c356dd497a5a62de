"""Charts over time: the run on one axis, and the clients beside it (floor F4)."""

from __future__ import annotations

import dataclasses
from typing import Any

from plotly.subplots import make_subplots

from distbench.report.charts import Chart, Rows, plain
from distbench.report.theme import BAND, MUTED, axis, layout, series_style
from distbench.report.timeline import Timeline, Values
from distbench.units import ns_to_s

_STRIP_PX = 128
# Between the first strip and its legend stand the connections of each window.
_NAME_PX = 14
# Connections are named above a window where the name before is so much of the whole span away.
_LABEL_GAP = 0.03


@dataclasses.dataclass(frozen=True, slots=True)
class _Panel:
    """One strip of a timeline: its axis title, and (series, name, factor) of each line; bars instead of lines for counts."""

    title: str
    lines: tuple[tuple[str, str, float], ...]
    bars: bool = False


TIMELINE_PANELS = (
    _Panel("requests/s", (("request_rate", "requests/s", 1),)),
    _Panel("output tokens/s", (("output_token_rate", "output tokens/s", 1),)),
    _Panel("requests", (("running", "running", 1), ("waiting", "waiting", 1))),
    _Panel("%", (("kv_usage", "KV use", 100), ("prefix_hit_ratio", "prefix hits", 100))),
    _Panel("preemptions/s", (("preemption_rate", "preemptions/s", 1),), bars=True),
    _Panel(
        "GPU %",
        (
            ("gpu_util", "GPU busy", 100),
            ("gpu_sm_active", "SM active", 100),
            ("gpu_dram_active", "memory active", 100),
            ("gpu_tensor_active", "tensor active", 100),
        ),
    ),
    _Panel("GPU W", (("gpu_power_w", "power of a GPU", 1),)),
)
CLIENT_PANELS = (
    _Panel("in flight", (("in_flight", "in flight", 1), ("asked", "asked", 1))),
    _Panel("CPU %", (("cpu", "busiest client's loop", 100),)),
    _Panel("lag ms", (("lag_p99_s", "worst client's lag p99", 1000),)),
)


def timeline_chart(timeline: Timeline, rows: Rows, panels: tuple[_Panel, ...] = TIMELINE_PANELS) -> Chart:
    """
    Return strips over one axis of time; strips without any reading are left out.

    Args:
        timeline: The binned series.
        rows: Rows of levels.parquet: their windows are shaded.
        panels: The strips.
    """
    shown = [p for p in panels if timeline.has(*[name for name, _, _ in p.lines])]
    count, height = max(1, len(shown)), 106 + _STRIP_PX * len(shown)
    figure = make_subplots(rows=count, cols=1, shared_xaxes=True, vertical_spacing=0.24 / count)
    margin = {"l": 56, "r": 16, "t": 52, "b": 48}
    figure.update_layout(**layout(height, bargap=0, showlegend=True, margin=margin))
    for place, panel in enumerate(shown, start=1):
        lines = [line for line in panel.lines if timeline.has(line[0])]
        for number, (name, title, factor) in enumerate(lines):
            _add(figure, timeline, panel, number, name, title, factor, place)
        largest = max(v * f for name, _, f in lines for v in timeline[name] if v is not None)
        numbers = ",~s" if largest >= 1000 else ",~g"
        figure.update_yaxes(
            axis(panel.title, rangemode="tozero", nticks=4, tickformat=numbers), row=place, col=1
        )
        # A legend of its own above each strip: the colours start again in each.
        top = figure.layout[_numbered("yaxis", place)].domain[1]
        top += _NAME_PX / (height - margin["t"] - margin["b"]) if place == 1 else 0.0
        figure.layout[_numbered("legend", place)] = {**figure.layout.legend.to_plotly_json(), "y": top}
    figure.update_xaxes(axis("", showgrid=False, showticklabels=False))
    figure.update_xaxes(title_text="seconds since the run's epoch", showticklabels=True, row=count, col=1)
    _shade_windows(figure, rows, timeline)
    return plain(figure)


def _numbered(name: str, place: int) -> str:
    return name if place == 1 else f"{name}{place}"


def _add(
    figure: Any,
    timeline: Timeline,
    panel: _Panel,
    number: int,
    name: str,
    title: str,
    factor: float,
    place: int,
) -> None:
    values = _scaled(timeline[name], factor)
    common = {"x": timeline.seconds, "y": values, "name": title, "row": place, "col": 1}
    common["legend"] = _numbered("legend", place)
    style = series_style(number)
    if panel.bars:
        figure.add_bar(**common, marker={"color": style["line"]["color"], "line": {"width": 0}})
    else:
        line = {**style["line"], "width": 1.6}
        figure.add_scatter(**common, mode="lines", line=line, hovertemplate="%{y:,.4~g}")


def _scaled(values: Values, factor: float) -> Values:
    return values if factor == 1 else [None if v is None else float(f"{v * factor:.5g}") for v in values]


def _shade_windows(figure: Any, rows: Rows, timeline: Timeline) -> None:
    """Shade the window of each level and name its connections above; where there are many, only some are named."""
    known = [row for row in rows if row["window_start_ns"] is not None and row["window_end_ns"] is not None]
    span_s = (timeline.seconds[-1] - timeline.seconds[0]) if timeline.seconds else 0.0
    named: list[tuple[float, str]] = []
    for row in known:
        middle_s = ns_to_s((row["window_start_ns"] + row["window_end_ns"]) // 2)
        if not named or middle_s - named[-1][0] >= _LABEL_GAP * span_s:
            named.append((middle_s, f"{row['connections']:,}"))
    figure.update_layout(
        shapes=[
            {
                "type": "rect",
                "xref": "x",
                "yref": "paper",
                "x0": ns_to_s(row["window_start_ns"]),
                "x1": ns_to_s(row["window_end_ns"]),
                "y0": 0,
                "y1": 1,
                "fillcolor": BAND,
                "line": {"width": 0},
                "layer": "below",
            }
            for row in known
        ],
        annotations=[
            {
                "xref": "x",
                "yref": "paper",
                "x": middle_s,
                "y": 1,
                "yanchor": "bottom",
                "text": text,
                "showarrow": False,
                "font": {"size": 10.5, "color": MUTED},
            }
            for middle_s, text in named
        ],
    )
