"""
The ceiling out of a search's readings (floor F3, pure): peak with its interval, knee, decline, and the SLOs' highest level.

The reading that selected the peak is left out of its figure: the highest of many noisy readings is too high by its choice.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from distbench.analysis.ladder import best_setting
from distbench.analysis.noise import Scatter, is_below, pooled_scatter, t_interval
from distbench.analysis.readings import Reading, Setting, settings_of

KNEE_RATIO = 0.97
GOOD_RATIO = 0.99


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """
    A place on the curve.

    Attributes:
        connections: The setting.
        output_token_rate: Tokens/s, the mean of its readings; of the peak: of its repeats.
        request_rate: Requests/s of the same readings; None where none tells.
        interval: 95 % t interval of output_token_rate; None with fewer than two readings.
        readings: How many are behind the figure.
    """

    connections: int
    output_token_rate: float
    request_rate: float | None
    interval: tuple[float, float] | None
    readings: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Decline:
    """
    Where more connections made it worse.

    Attributes:
        connections: The level behind the peak with the least throughput.
        ratio: Its rate over the peak's, below 0.97.
    """

    connections: int
    ratio: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """
    What the search found.

    Attributes:
        peak: Most output tokens/s.
        knee: Fewest connections that are not significantly below 97 % of it.
        decline: None where no level behind the peak is significantly below 97 % of it.
        scatter: Relative standard deviation of one reading, from the repeats.
    """

    peak: Point
    knee: Point
    decline: Decline | None
    scatter: Scatter


def ceiling(history: Sequence[Reading]) -> Ceiling | None:
    """
    Find the ceiling.

    Args:
        history: All readings of a search, or of a plain list of levels.

    Returns:
        None where no reading counts.
    """
    measured = settings_of(history)
    usable = {connections: s for connections, s in measured.items() if s.all_rates}
    if not usable:
        return None
    scatter = pooled_scatter([_independent(s) for s in usable.values()])
    selected = best_setting(usable) or max(usable.values(), key=lambda s: max(s.all_rates))
    peak = _settle_on_peak(usable, selected, scatter)
    peak_rates = _independent(peak)
    knee = next(
        setting
        for setting in usable.values()
        if setting is peak
        or (
            setting.connections < peak.connections
            and not is_below(_rates(setting, selected), peak_rates, KNEE_RATIO, scatter)
        )
    )
    return Ceiling(
        peak=_point(peak, peak_rates, repeats_only=bool(peak.repeat_rates)),
        knee=_point(knee, _rates(knee, peak), repeats_only=knee is peak and bool(peak.repeat_rates)),
        decline=_decline(usable, peak, selected, scatter),
        scatter=scatter,
    )


def _independent(setting: Setting) -> list[float]:
    """Return the repeats alone; the selecting reading only where there is nothing else."""
    return setting.repeat_rates or setting.all_rates


def _rates(setting: Setting, selected: Setting) -> list[float]:
    """Return all readings of a setting, but of the selected one only those that did not select it."""
    return _independent(setting) if setting.connections == selected.connections else setting.all_rates


def _settle_on_peak(usable: Mapping[int, Setting], selected: Setting, scatter: Scatter) -> Setting:
    """Keep the selected setting unless its repeats are significantly below those of another repeated one."""
    peak = selected
    if not selected.repeat_rates:
        return peak
    for setting in usable.values():
        if len(setting.repeat_rates) > 1 and is_below(peak.repeat_rates, setting.repeat_rates, 1.0, scatter):
            peak = setting
    return peak


def _decline(
    usable: Mapping[int, Setting], peak: Setting, selected: Setting, scatter: Scatter
) -> Decline | None:
    peak_rate = _mean(_independent(peak))
    fallen = [
        Decline(connections=connections, ratio=_mean(rates) / peak_rate)
        for connections, setting in usable.items()
        if connections > peak.connections
        and is_below(rates := _rates(setting, selected), _independent(peak), KNEE_RATIO, scatter)
    ]
    return min(fallen, key=lambda d: d.ratio, default=None)


def _point(setting: Setting, rates: Sequence[float], *, repeats_only: bool) -> Point:
    readings = setting.used_repeats if repeats_only else setting.used
    requests = [r.request_rate for r in readings if r.request_rate is not None]
    return Point(
        connections=setting.connections,
        output_token_rate=_mean(rates),
        request_rate=_mean(requests) if requests else None,
        interval=t_interval(rates),
        readings=len(rates),
    )


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SloLevel:
    """
    The most connections at which the SLOs are kept.

    Attributes:
        connections: The setting; every reading of it kept them.
        request_rate: Requests/s there, mean; None where unknown.
        goodput_rate: Good requests/s there, mean.
        good_ratio: Least share of good requests of its readings.
    """

    connections: int
    request_rate: float | None
    goodput_rate: float | None
    good_ratio: float


def highest_meeting_slos(history: Sequence[Reading], share: float = GOOD_RATIO) -> SloLevel | None:
    """
    Return the highest level of which at least ``share`` of the requests met every SLO, in all its readings.

    Returns:
        None where no level did, or no SLO was asked for (good_ratio None: unknown, which is never "met").
    """
    best = None
    for setting in settings_of(history).values():
        counted = [r for r in setting.readings if r.counts]
        ratios = [r.good_ratio for r in counted]
        known = [ratio for ratio in ratios if ratio is not None]
        if not known or len(known) < len(ratios) or min(known) < share:
            continue
        rates = [r.request_rate for r in counted if r.request_rate is not None]
        goodput = [r.goodput_rate for r in counted if r.goodput_rate is not None]
        best = SloLevel(
            connections=setting.connections,
            request_rate=_mean(rates) if rates else None,
            goodput_rate=_mean(goodput) if goodput else None,
            good_ratio=min(known),
        )
    return best
