"""
Colours and the common look of all charts (floor F4).

Series take the four strongest colours of Okabe and Ito's palette, which stay apart for all common kinds of colour blindness, and
differ in dash or marker as well. Charts are made in the light scheme; the page swaps each colour for its dark partner.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

BLUE = "#0072b2"
VERMILION = "#d55e00"
GREEN = "#009e73"
PURPLE = "#a8507f"
INK = "#1c2127"
MUTED = "#5c6672"
GRID = "#e3e7ec"
BAND = "#eef1f5"
PAST = "#fbe9dd"
PANEL = "#fdfefe"
SERIES = (BLUE, VERMILION, GREEN, PURPLE)
DASHES = ("solid", "dash", "dot", "dashdot")
SYMBOLS = ("circle", "square", "diamond", "triangle-up")

# Light -> dark. The blue and the vermilion of the palette are too dark on a dark page: its sky blue and orange take their places.
DARK = {
    BLUE: "#56b4e9",
    VERMILION: "#f0a030",
    GREEN: "#2fc79b",
    PURPLE: "#d992b8",
    INK: "#e8ebef",
    MUTED: "#9ba6b3",
    GRID: "#2b323c",
    BAND: "#1d232c",
    PAST: "#3a2a1c",
    PANEL: "#161b22",
}

_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', 'DejaVu Sans', sans-serif"


def series_style(number: int) -> dict[str, Any]:
    """Return colour, dash and marker of the n-th series; they repeat in different pairings."""
    colour = SERIES[number % len(SERIES)]
    dash = DASHES[(number + number // len(SERIES)) % len(DASHES)]
    symbol = SYMBOLS[(number + number // len(SERIES)) % len(SYMBOLS)]
    return {
        "line": {"color": colour, "width": 2.25, "dash": dash},
        "marker": {"color": colour, "size": 7, "symbol": symbol},
    }


def layout(height: int, **more: Any) -> dict[str, Any]:
    """Return the layout that all charts share; the page sets the width."""
    return {
        "height": height,
        "autosize": True,
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": _FONT, "size": 12.5, "color": INK},
        "margin": {"l": 56, "r": 16, "t": 36, "b": 48},
        "hovermode": "x unified",
        "hoverlabel": {"bgcolor": PANEL, "bordercolor": GRID, "font": {"color": INK}},
        "legend": {"orientation": "h", "x": 0, "y": 1.01, "yanchor": "bottom", "font": {"size": 12}},
        "dragmode": False,
    } | more


def axis(title: str, **more: Any) -> dict[str, Any]:
    """Return an axis with the common look."""
    return {
        "title": {"text": title, "font": {"size": 12, "color": MUTED}, "standoff": 8},
        "gridcolor": GRID,
        "linecolor": GRID,
        "zeroline": False,
        "automargin": True,
        "tickfont": {"color": MUTED, "size": 11.5},
        **more,
    }


def log_connections(values: list[int]) -> dict[str, Any]:
    """Return a logarithmic axis of connections with a tick at the levels, thinned out where there are many."""
    distinct = sorted(set(values))
    if len(distinct) > 1 and distinct[-1] / max(1, distinct[0]) < 4:
        return axis("connections", tickformat=",d")
    ticks: list[int] = []
    for value in distinct:
        if not ticks or value / ticks[-1] >= 1.9:
            ticks.append(value)
    return axis("connections (logarithmic)", type="log", tickvals=ticks, ticktext=[f"{v:,}" for v in ticks])


def log_axis(title: str, values: Sequence[float | None]) -> dict[str, Any]:
    """
    Return a logarithmic axis with ticks that fit the span of its values: 1, 2, 5, 10 over a few decades, else the decades.

    Values that lie close together get a plain axis, since they might have no such tick between them.

    Args:
        title: Name and unit.
        values: What is shown; None and values that have no logarithm do not count.
    """
    positive = [value for value in values if value is not None and value > 0]
    decades = math.log10(max(positive) / min(positive)) if positive else 0.0
    if decades < 0.5:
        return axis(title, tickformat=",~g")
    return axis(title, type="log", tickformat=",~g", dtick="D2" if decades < 2.5 else 1)
