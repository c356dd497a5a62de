"""Drift between the thirds of a window is told from the scatter inside them."""

import numpy as np
import pyarrow as pa
import pytest

from distbench.analysis.stability import block_rates, judge_stability, stability
from distbench.store.schema import REQUESTS

S = 1_000_000_000
FIELDS = ("sent_ns", "end_ns", "chunk_us", "completion_tokens")
SCHEMA = pa.schema([REQUESTS.field(name) for name in FIELDS])


def table(*rows: tuple[int | None, int | None, list[int] | None, int | None]) -> pa.Table:
    """Return request rows (sent_ns, end_ns, chunk_us, completion_tokens)."""
    return pa.Table.from_pylist([dict(zip(FIELDS, row, strict=True)) for row in rows], schema=SCHEMA)


@pytest.mark.parametrize(
    ("rates", "stable"),
    [
        ([100] * 12, True),
        ([100] * 4 + [100] * 4 + [109] * 4, True),
        ([80, 81, 79, 80, 100, 101, 99, 100, 100, 99, 101, 100], False),
        ([100, 60, 140, 90, 150, 70, 130, 80, 60, 150, 120, 110], True),
        ([50] * 4 + [100] * 8, False),
    ],
    ids=["flat", "9 percent", "cold start", "noise only", "step"],
)
def test_thirds_that_differ_beyond_noise_are_unstable(rates: list[float], stable: bool) -> None:
    """More than 10 % between thirds counts only where the blocks inside the thirds scatter less."""
    assert judge_stability(np.array(rates, dtype=float)).stable is stable


def test_drift_is_told_with_its_numbers() -> None:
    """Thirds 80, 100, 100: they differ by 20 / 93.33."""
    found = judge_stability(np.array([80.0] * 4 + [100.0] * 8))
    assert found.third_rates == (80.0, 100.0, 100.0)
    assert found.drift_ratio == pytest.approx(20 / 93.3333, rel=1e-4)
    assert "80, 100, 100 tokens/s" in found.text


def test_no_tokens_are_not_judged() -> None:
    """An empty window is neither stable nor unstable."""
    assert judge_stability(np.zeros(12)).stable is None
    assert stability(table(), (0, S)).stable is None


def test_rate_error_is_the_standard_error_of_the_blocks() -> None:
    """Alternating 90 and 110 over 12 blocks: sd sqrt(1200 / 11), error sd / sqrt(12)."""
    found = judge_stability(np.array([90.0, 110.0] * 6))
    assert found.rate_error == pytest.approx((1200 / 11) ** 0.5 / 12**0.5)


def test_blocks_count_tokens_at_their_own_times() -> None:
    """Two chunks with 4 tokens, 2 s apart, lie in blocks of their own; chunks outside the window do not count."""
    rows = table((0, 3 * S, [500_000, 2_500_000], 4), (0, 9 * S, [3_600_000], 7))
    assert block_rates(rows, (0, 3 * S), blocks=3).tolist() == [2.0, 0.0, 2.0]


def test_blocks_spread_what_came_at_once() -> None:
    """An answer without chunks is spread over its time; what was never sent counts nothing."""
    rows = table((S, 3 * S, None, 6), (None, None, None, None), (0, None, [], None))
    assert block_rates(rows, (0, 3 * S), blocks=3).tolist() == [0.0, 3.0, 3.0]
