"""How far two throughputs may differ by chance (floor F3, pure): t intervals and pooled scatter of repeats."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence

import numpy as np
from scipy import special

# What repeats of one level scatter by on a quiet server, where nothing better is known yet.
DEFAULT_RELATIVE_ERROR = 0.01
_CONFIDENCE = 0.95


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Scatter:
    """
    The relative standard deviation of one reading.

    Attributes:
        relative_sd: Standard deviation over the mean, of a single reading.
        degrees: Degrees of freedom behind it; 0 where it is assumed.
    """

    relative_sd: float
    degrees: int


def t_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % t interval of the mean; None with fewer than two values."""
    if len(values) < 2:
        return None
    mean = math.fsum(values) / len(values)
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    half = float(special.stdtrit(len(values) - 1, 0.5 + _CONFIDENCE / 2)) * error
    return mean - half, mean + half


def pooled_scatter(groups: Iterable[Sequence[float]]) -> Scatter:
    """
    Pool the relative scatter of repeated readings over all settings.

    Args:
        groups: Readings of one setting each; groups of one tell nothing.

    Returns:
        The pooled scatter; the default with 0 degrees where no setting was repeated. It is never below 0.1 %: three readings that
        agree by chance do not make a fourth exact.
    """
    squares = 0.0
    degrees = 0
    for values in groups:
        if len(values) > 1:
            mean = math.fsum(values) / len(values)
            squares += math.fsum(((value - mean) / mean) ** 2 for value in values)
            degrees += len(values) - 1
    if degrees == 0:
        return Scatter(relative_sd=DEFAULT_RELATIVE_ERROR, degrees=0)
    return Scatter(relative_sd=max(math.sqrt(squares / degrees), 0.001), degrees=degrees)


def is_below(values: Sequence[float], bound_values: Sequence[float], ratio: float, scatter: Scatter) -> bool:
    """
    Tell whether a setting is significantly (5 %, one-sided) below a share of another.

    Args:
        values: Readings of the setting; at least one.
        bound_values: Readings of the other; at least one.
        ratio: The share, such as 0.97.
        scatter: Of a single reading.
    """
    mean = math.fsum(values) / len(values)
    bound = ratio * math.fsum(bound_values) / len(bound_values)
    error = scatter.relative_sd * math.sqrt(mean**2 / len(values) + bound**2 / len(bound_values))
    quantile = (
        float(special.stdtrit(scatter.degrees, _CONFIDENCE))
        if scatter.degrees
        else float(special.ndtri(_CONFIDENCE))
    )
    return mean < bound - quantile * error
