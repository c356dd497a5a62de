"""
Prometheus text into samples (floor F2, pure).

prometheus_client does the parsing; here the format is chosen by the Content-Type, a bad line costs itself and not the scrape, a value
that is no number becomes None, and the names stay as the server wrote them. Exemplars and timestamps are dropped.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping

from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as _parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as _parse_text

# What to ask for. Servers that can do both answer in the classic format, which needs no complete families to be parsed.
ACCEPT = "text/plain;version=0.0.4;q=1,*/*;q=0.1"

_OPENMETRICS = "application/openmetrics-text"
_COUNTER_TYPE = re.compile(r"^# TYPE (\S+) counter\s*$", re.MULTILINE)
# What the parsers raise on broken input: they are written for good input and check by trying.
_PARSE_ERRORS = (ValueError, IndexError, KeyError, AttributeError, TypeError)
_PARTS = ("", "_total", "_sum", "_count", "_created")


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """
    One line of a scrape.

    Attributes:
        name: As the server writes it, suffixes included.
        labels: Of the series.
        value: None where the server wrote NaN or an infinity: there is no observation.
    """

    name: str
    labels: Mapping[str, str]
    value: float | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Exposition:
    """
    A parsed scrape.

    Attributes:
        samples: In the server's order, as far as kept.
        helps: HELP text by family name as the server writes it.
        bad_lines: Lines that could not be read and were skipped.
        openmetrics: Whether the OpenMetrics parser read it.
    """

    samples: tuple[Sample, ...]
    helps: Mapping[str, str]
    bad_lines: int
    openmetrics: bool


def parse_exposition(
    text: str, content_type: str | None = None, *, keep: Callable[[str], bool] | None = None
) -> Exposition:
    """
    Parse the body of a /metrics answer.

    Args:
        text: The body.
        content_type: Of the answer; application/openmetrics-text chooses the OpenMetrics parser, anything else the classic one.
        keep: Which sample names are wanted; None: all. Unwanted lines are dropped before they are parsed, which is most of the
            work (three quarters of vLLM's lines are histogram buckets).

    Returns:
        What could be read; never raises on bad input.
    """
    wanted = keep or (lambda name: True)
    if content_type is not None and content_type.strip().lower().startswith(_OPENMETRICS):
        try:
            families = list(_parse_openmetrics(text))  # type: ignore[no-untyped-call]
        except _PARSE_ERRORS:
            # One broken line, or a family that is not complete, fails the strict parser as a whole. The lax one reads line by line.
            pass
        else:
            return _exposition(families, frozenset(), wanted, bad_lines=0, openmetrics=True)
    lines = [line for line in text.splitlines() if _is_wanted(line, wanted)]
    families, bad_lines = _parse_tolerantly(lines)
    bare_counters = frozenset(name for name in _COUNTER_TYPE.findall(text) if not name.endswith("_total"))
    return _exposition(families, bare_counters, wanted, bad_lines=bad_lines, openmetrics=False)


def _is_wanted(line: str, wanted: Callable[[str], bool]) -> bool:
    """Tell a line worth parsing by the name it starts with."""
    if line.startswith("#"):
        words = line.split(None, 3)
        return len(words) > 2 and any(wanted(words[2] + part) for part in _PARTS)
    if line.lstrip().startswith("{"):
        return True  # the name, if any, is inside the braces; the parser finds it
    name = line.split("{", 1)[0].split(None, 1)
    return bool(name) and wanted(name[0])


def _parse_tolerantly(lines: list[str]) -> tuple[list[Metric], int]:
    """Return the families and the number of lines that had to be left out."""
    try:
        return list(_parse_text("\n".join(lines) + "\n")), 0
    except _PARSE_ERRORS:
        pass
    readable = [_readable(line) for line in lines]
    good = [line for line in readable if line is not None]
    bad = len(lines) - len(good)
    try:
        return list(_parse_text("\n".join(good) + "\n")), bad
    except _PARSE_ERRORS:
        # Lines that are good alone and not together lose their types and HELP texts, never their values.
        return [family for line in good for family in _parse_text(line + "\n")], bad


def _readable(line: str) -> str | None:
    """Return the line, or the line without its exemplar, if the parser takes it alone; else None."""
    for candidate in (line, line.rpartition(" # {")[0]):
        try:
            if candidate:
                list(_parse_text(candidate + "\n"))
                return candidate
        except _PARSE_ERRORS:
            continue
    return None


def _exposition(
    families: Iterable[Metric],
    bare_counters: frozenset[str],
    wanted: Callable[[str], bool],
    *,
    bad_lines: int,
    openmetrics: bool,
) -> Exposition:
    samples = []
    helps = {}
    for family in families:
        # The classic parser renames counters after OpenMetrics rules; the rows keep the server's own names.
        is_bare = family.name in bare_counters
        total = family.type == "counter" and not is_bare
        if family.documentation:
            helps[family.name + "_total" if total else family.name] = family.documentation
        for sample in family.samples:
            name = sample.name.removesuffix("_total") if is_bare else sample.name
            if wanted(name):
                value = float(sample.value)
                samples.append(Sample(name, dict(sample.labels), value if math.isfinite(value) else None))
    return Exposition(samples=tuple(samples), helps=helps, bad_lines=bad_lines, openmetrics=openmetrics)
