"""
Where a peak may hide between two levels (floor F3, pure).

Throughput over connections is taken to be concave in logarithms: it grows at most in proportion, bends, and falls. Then the line through
two levels bounds the curve beyond them, and the lines from both sides of a gap cross at the highest point that the gap can hold.
Where that is no more than 2 % above the best level, nothing is to be gained by looking.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

_WORTHWHILE_GAIN = math.log(1.02)
_FINEST_FACTOR = 1.06
# A measurement close to a level that exists already tells little: keep to the inner part of the gap.
_MARGIN = 0.2

Spot = tuple[float, float]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """
    A gap that may hold the peak.

    Attributes:
        low, high: Connections on either side.
        connections: Where to measure.
        gain_ratio: By how much it may exceed the best level at the most.
    """

    low: int
    high: int
    connections: int
    gain_ratio: float


def promising_gap(levels: Sequence[tuple[int, float]], best: int) -> Gap | None:
    """
    Return the gap beside the best level that may hold the most.

    Args:
        levels: (connections, rate) ascending, rates > 0.
        best: Index of the best level.

    Returns:
        None where no gap can hold 2 % more, or all are too narrow.
    """
    spots = [(math.log(connections), math.log(rate)) for connections, rate in levels]
    gaps = []
    for left in (best - 1, best):
        right = left + 1
        if left < 0 or right >= len(levels):
            continue
        low, high = levels[left][0], levels[right][0]
        x, y = _crossing(spots, left, right)
        gain = y - spots[best][1]
        if high / low <= _FINEST_FACTOR or gain <= _WORTHWHILE_GAIN:
            continue
        width = spots[right][0] - spots[left][0]
        inner = min(max(x, spots[left][0] + _MARGIN * width), spots[right][0] - _MARGIN * width)
        connections = math.floor(math.exp(inner) + 0.5)
        if low < connections < high:
            gaps.append(Gap(low=low, high=high, connections=connections, gain_ratio=math.expm1(gain)))
    return max(gaps, key=lambda gap: gap.gain_ratio, default=None)


def _crossing(spots: Sequence[Spot], left: int, right: int) -> Spot:
    """Return where the rising line from the left meets the falling line from the right, inside the gap."""
    (x0, y0), (x1, y1) = spots[left], spots[right]
    # Nothing grows faster than in proportion to its connections.
    rise = min(max(_slope(spots[left - 1], spots[left]), 0.0), 1.0) if left else 1.0
    if right + 1 == len(spots):
        # Nothing is known behind the gap: the rise may go on to its very end.
        return x1, y0 + rise * (x1 - x0)
    fall = min(_slope(spots[right], spots[right + 1]), 0.0)
    if rise == fall:
        return x0, y0
    x = min(max((y1 - y0 + rise * x0 - fall * x1) / (rise - fall), x0), x1)
    return x, y0 + rise * (x - x0)


def _slope(first: Spot, second: Spot) -> float:
    return (second[1] - first[1]) / (second[0] - first[0])
