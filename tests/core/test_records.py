"""Tests of distbench.core.records."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distbench.core.records import Phase, request_id


def test_request_id_reads_off_level_phase_and_index() -> None:
    """Level 3 measured 17 is 3000000000017; its warm-up twin has a 5 behind the level's digits."""
    assert request_id(3, Phase.MEASURED, 17) == 3_000_000_000_017
    assert request_id(3, Phase.WARMUP, 17) == 3_500_000_000_017
    assert request_id(0, Phase.MEASURED, 0) == 0


_PLACES = st.tuples(
    st.integers(0, 32_767), st.sampled_from([Phase.WARMUP, Phase.MEASURED]), st.integers(0, 5 * 10**11 - 1)
)


@given(_PLACES, _PLACES)
def test_request_ids_are_equal_only_for_equal_places_and_fit_int64(
    a: tuple[int, Phase, int], b: tuple[int, Phase, int]
) -> None:
    """An id names one place of a run, and no place has two."""
    assert (request_id(*a) == request_id(*b)) == (a == b)
    assert 0 <= request_id(*a) < 2**63


def test_an_index_beyond_the_scheme_is_refused() -> None:
    """A larger index would run into the warm-up's ids."""
    with pytest.raises(ValueError, match="outside"):
        request_id(1, Phase.MEASURED, 5 * 10**11)
