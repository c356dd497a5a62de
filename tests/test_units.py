"""Tests of distbench.units."""

from __future__ import annotations

import pytest

from distbench.units import parse_duration_s, s_to_ns


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5),
        ("1.5s", 1.5),
        ("2m", 120.0),
        ("1h", 3600.0),
        ("7", 7.0),
        ("250us", 0.00025),
        (" .5 s ", 0.5),
    ],
)
def test_parse_duration_reads_every_unit(text: str, seconds: float) -> None:
    """A duration is a number with us, ms, s, m, min or h; a bare number is seconds."""
    assert parse_duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "fast", "-1s", "1 day", "1e3", "nan", "1,5s"])
def test_parse_duration_refuses_what_it_cannot_read(text: str) -> None:
    """Anything else is refused, and the message names accepted forms."""
    with pytest.raises(ValueError, match="500ms"):
        parse_duration_s(text)


def test_seconds_become_whole_nanoseconds_by_rounding() -> None:
    """0.1 s is not representable in binary; rounding, not truncation, gives the meant number."""
    assert s_to_ns(0.1) == 100_000_000
    assert s_to_ns(1.1) == 1_100_000_000
