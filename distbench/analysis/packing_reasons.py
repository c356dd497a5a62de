"""
Why one shape answers more user messages than another (floor F3, pure): what changed at the server, with the numbers.
"""

from __future__ import annotations

from distbench.analysis.packing import Shape
from distbench.analysis.remarks import number

# Below these a difference between two shapes is no reason for anything.
_HIT_CHANGE = 0.02
_KV_CHANGE = 0.05
_RUNNING_CHANGE = 0.10
_WORK_CHANGE = 0.05


def changes_between(base: Shape, shape: Shape) -> list[str]:
    """Return what differs at the server between two shapes, with the numbers, the causes before their effects."""
    makers = (_hit_change, _work_change, _kv_change, _running_change, _preemption_change, _clamp_change)
    return [text for make in makers if (text := make(base, shape)) is not None]


def _hit_change(base: Shape, shape: Shape) -> str | None:
    before, after = base.hit_ratio, shape.hit_ratio
    if before is None or after is None or abs(after - before) < _HIT_CHANGE:
        return None
    return f"the prefix-cache hit rate {_moved(before, after)} from {before:.0%} to {after:.0%}"


def _work_change(base: Shape, shape: Shape) -> str | None:
    """What packing can save is the reading of the shared part; the cache may have saved it already."""
    before, after = base.computed_per_message, shape.computed_per_message
    if before is None or after is None or before <= 0:
        return None
    figures = f"{number(before)} to {number(after)} prompt tokens computed per user message"
    if abs(after / before - 1) < _WORK_CHANGE:
        return f"the work of reading stayed the same, {figures}"
    return f"the work of reading {_moved(before, after)}, {figures}"


def _kv_change(base: Shape, shape: Shape) -> str | None:
    before, after = base.row["kv_usage_mean"], shape.row["kv_usage_mean"]
    if before is None or after is None or abs(after - before) < _KV_CHANGE:
        return None
    return f"mean KV-cache use {_moved(before, after)} from {before:.0%} to {after:.0%}"


def _running_change(base: Shape, shape: Shape) -> str | None:
    before, after = base.row["running_mean"], shape.row["running_mean"]
    if not before or after is None or abs(after / before - 1) < _RUNNING_CHANGE:
        return None
    return f"requests running together {_moved(before, after)} from {number(before)} to {number(after)}"


def _preemption_change(base: Shape, shape: Shape) -> str | None:
    before, after = base.row["preemptions"], shape.row["preemptions"]
    if before is None or after is None or not (before or after):
        return None
    return f"{after:,.0f} preemptions to {before:,.0f}"


def _clamp_change(base: Shape, shape: Shape) -> str | None:
    clamped = shape.row["requests_clamped"]
    if not clamped:
        return None
    share = shape.row["answered_ratio"]
    held = "" if share is None else f", which hold {share:.0%} of what was asked"
    return f"the context cut {clamped:,} of {shape.row['requests_ok']:,} answers short{held}"


def _moved(before: float, after: float) -> str:
    return "rose" if after > before else "fell"
