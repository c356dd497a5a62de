"""
Conversions between the units of the project (floor F0).

Stamps and gaps are int nanoseconds; settings and derived latencies are float seconds; milliseconds exist only where a person
reads them. Nothing else converts, so that a missing factor of a thousand has one place to hide in.
"""

from __future__ import annotations

import re

NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000
NS_PER_US = 1_000

_DURATION = re.compile(r"^\s*(\d+(?:\.\d*)?|\.\d+)\s*(us|µs|ms|s|m|min|h)?\s*$")
_SECONDS_PER_UNIT = {
    "us": 1e-6,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "min": 60.0,
    "h": 3600.0,
    "": 1.0,
}


def s_to_ns(seconds: float) -> int:
    """Return seconds as whole nanoseconds, rounded to the nearest."""
    return round(seconds * NS_PER_S)


def ns_to_s(nanoseconds: int) -> float:
    """Return nanoseconds as float seconds."""
    return nanoseconds / NS_PER_S


def s_to_ms(seconds: float) -> float:
    """Return seconds as milliseconds, for tables and messages only."""
    return seconds * 1_000.0


def parse_duration_s(text: str) -> float:
    """
    Read a duration such as ``500ms``, ``1.5s``, ``2m``, ``1h`` or a bare number of seconds.

    Returns:
        Seconds, >= 0.

    Raises:
        ValueError: the text is no duration; the message names the accepted forms.
    """
    match = _DURATION.match(text)
    if match is None:
        raise ValueError(f"{text!r} is not a duration; write it like 500ms, 1.5s, 2m or 1h")
    return float(match.group(1)) * _SECONDS_PER_UNIT[match.group(2) or ""]
