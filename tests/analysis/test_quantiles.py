"""Quantiles are linear and exact; a quantile of nothing is None."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from distbench.analysis.quantiles import WholeCounts, mean, quantiles


def test_quantiles_are_linear_between_ranks() -> None:
    """Of 10, 20, 30, 40: the median is 25; p90 has rank 2.7, which is 37."""
    assert quantiles(np.array([40.0, 10.0, np.nan, 30.0, 20.0]), [0.0, 0.5, 0.9, 1.0]) == pytest.approx(
        [10.0, 25.0, 37.0, 40.0]
    )


def test_nothing_has_no_quantile_and_no_mean() -> None:
    """Empty, or nothing but null."""
    assert quantiles(np.array([]), [0.5, 0.99]) == [None, None]
    assert quantiles(np.array([np.nan]), [0.5]) == [None]
    assert mean(np.array([np.nan])) is None
    assert WholeCounts().quantiles([0.5]) == [None]
    assert WholeCounts().n == 0


def test_pooled_is_not_the_mean_of_parts() -> None:
    """99 values of 1 and one of 1000 at two clients: the pooled p99 is theirs together, whatever the split."""
    counts = WholeCounts()
    counts.add(np.array([1] * 99))
    counts.add(np.array([1_000]))
    assert counts.n == 100
    # rank 0.99 * 99 = 98.01: between the last 1 and the 1000.
    assert counts.quantiles([0.99]) == pytest.approx([1 + 0.01 * 999])


def test_values_beyond_the_dense_counters_are_exact_too() -> None:
    """Gaps of more than a second are rare and kept one by one."""
    counts = WholeCounts()
    counts.add(np.array([5, 3_000_000_000, 2_000_000], np.uint32))
    counts.add(np.array([2_000_000, 7], np.uint32))
    assert counts.n == 5
    assert counts.quantiles([0.0, 0.5, 0.75, 1.0]) == [5.0, 2_000_000.0, 2_000_000.0, 3_000_000_000.0]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.lists(st.integers(0, 2**32 - 1) | st.integers(0, 9), max_size=6), min_size=1, max_size=5),
    st.floats(0, 1),
)
def test_counted_quantiles_equal_those_of_all_values(parts: list[list[int]], q: float) -> None:
    """Counting values part by part gives the quantile of all of them."""
    counts = WholeCounts()
    for part in parts:
        counts.add(np.array(part, np.int64))
    everything = np.array([v for part in parts for v in part], np.float64)
    expected = None if not everything.size else float(np.quantile(everything, q))
    assert counts.quantiles([q])[0] == (
        None if expected is None else pytest.approx(expected, rel=1e-9, abs=1e-6)
    )
