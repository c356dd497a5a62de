"""
The figures that can be compared and gated on, and the grammar of a gate (floor F3, pure).

A gate is ``METRIC[@CONNECTIONS]:BOUND``, for example ``throughput:-5%``, ``ttft_p99:+10%``, ``tpot_p50@64:+2ms``. The bound says how much
worse is still accepted, in the direction of worse: - for rates, + for latencies; a share of the baseline (%), or for latencies a
time (ms, s).
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterable

from distbench.errors import PlanError
from distbench.store.schema import LATENCIES, RATES
from distbench.units import parse_duration_s


@dataclasses.dataclass(frozen=True, slots=True)
class Metric:
    """
    One figure of a level.

    Attributes:
        name: As it is given on the command line.
        column: Of levels.parquet.
        is_rate: More is better, per second; else a latency in seconds, and less is better.
    """

    name: str
    column: str
    is_rate: bool


METRICS: dict[str, Metric] = {
    "throughput": Metric("throughput", "output_token_rate", True),
    **{name: Metric(name, name, True) for name in (*RATES, "goodput_rate")},
    "goodput": Metric("goodput", "goodput_rate", True),
    **{
        f"{name}_{quantile}": Metric(f"{name}_{quantile}", f"{name}_{quantile}_s", False)
        for name in LATENCIES
        for quantile in ("p50", "p90", "p99")
    },
}
# What a comparison shows; throughput is output_token_rate under its short name.
SHOWN = (
    "throughput",
    "request_rate",
    "user_message_rate",
    "goodput",
    "ttft_p50",
    "ttft_p99",
    "tpot_p50",
    "tpot_p99",
    "e2e_p50",
    "e2e_p99",
)
_GATE = re.compile(
    r"^(?P<metric>[a-z0-9_]+)(?:@(?P<at>\d+))?:(?P<sign>[+-])(?P<amount>\d+(?:\.\d+)?)(?P<unit>%|ms|s)$"
)
_FORM = "write METRIC[@CONNECTIONS]:BOUND such as throughput:-5%, ttft_p99:+10% or tpot_p50@64:+2ms"


@dataclasses.dataclass(frozen=True, slots=True)
class Gate:
    """
    How much worse a figure may be.

    Attributes:
        text: As it was given.
        metric: The figure.
        connections: Only at so many connections; None: at the peak, see judge_gate.
        ratio: Accepted worsening as a share of the baseline, >= 0; None where it is a time.
        seconds: Accepted worsening in seconds, >= 0; None where it is a share.
    """

    text: str
    metric: Metric
    connections: int | None
    ratio: float | None
    seconds: float | None


def parse_gates(texts: Iterable[str]) -> tuple[Gate, ...]:
    """
    Read gates; one text may hold several, separated by spaces or commas.

    Raises:
        PlanError: one or more are wrong; it names every problem.
    """
    gates: list[Gate] = []
    problems: list[str] = []
    for text in (part for given in texts for part in re.split(r"[\s,]+", given) if part):
        try:
            gates.append(_parse_gate(text))
        except ValueError as error:
            problems.append(f"--fail-on {text}: {error}")
    if problems:
        raise PlanError(problems)
    return tuple(gates)


def _parse_gate(text: str) -> Gate:
    match = _GATE.match(text)
    if match is None:
        raise ValueError(f"is not a bound; {_FORM}")
    metric = METRICS.get(match["metric"])
    if metric is None:
        close = difflib.get_close_matches(match["metric"], METRICS, n=1)
        known = f"did you mean {close[0]}?" if close else f"known are {', '.join(METRICS)}"
        raise ValueError(f"there is no metric {match['metric']!r}; {known}")
    worse = "-" if metric.is_rate else "+"
    if match["sign"] != worse:
        direction = "less" if metric.is_rate else "more"
        raise ValueError(f"{direction} is worse for {metric.name}: the bound must begin with {worse}")
    if match["unit"] == "%":
        return Gate(text, metric, _at(match["at"]), float(match["amount"]) / 100, None)
    if metric.is_rate:
        raise ValueError(f"{metric.name} is a rate: its bound is a percentage")
    seconds = parse_duration_s(match["amount"] + match["unit"])
    return Gate(text, metric, _at(match["at"]), None, seconds)


def _at(text: str | None) -> int | None:
    return None if text is None else int(text)
