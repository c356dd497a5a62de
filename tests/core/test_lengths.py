"""Tests of distbench.core.lengths."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distbench.core.lengths import MAX_TOKENS, LengthSpec

_FRACTIONS = st.floats(1e-12, 1 - 1e-12)


@pytest.mark.parametrize(
    ("text", "fraction", "expected"),
    [
        ("128", 0.9, 128),
        ("uniform:64:256", 1e-9, 64),
        ("uniform:64:256", 1 - 1e-9, 256),
        ("uniform:0:1", 0.49, 1),
        ("uniform:10:19", 0.3, 13),
        ("normal:128:32", 0.5, 128),
        ("normal:128:32", 0.841344746, 160),  # one standard deviation above
        ("normal:10:100", 0.001, 1),
        ("lognormal:128:0.5", 0.5, 128),
        ("lognormal:128:0.5", 0.841344746, 211),  # 128 e^0.5 = 211.04
        ("lognormal:1000:50", 1 - 1e-9, MAX_TOKENS),
        ("lognormal:0:1", 0.9, 1),
    ],
)
def test_a_length_is_the_quantile_of_its_distribution(text: str, fraction: float, expected: int) -> None:
    """Inverse of the distribution, rounded, kept within the bounds."""
    assert LengthSpec.parse(text).at(fraction) == expected


@pytest.mark.parametrize(
    "text",
    [
        "", "x", "-1", "1.5", "uniform:5", "uniform:9:5", "uniform:1.5:3", "uniform:nan:3", "normal:inf:1", "zipf:1:2",
        "normal:-5:1", "1:2:3:4", "99999999999", "normal:1:99999999999",
    ],
)  # fmt: skip
def test_nonsense_is_refused_with_the_text_in_the_message(text: str) -> None:
    """What is no length raises ValueError and is quoted."""
    with pytest.raises(ValueError, match=r"tokens|bound") as caught:
        LengthSpec.parse(text)
    assert repr(text) in str(caught.value)


@given(
    st.one_of(
        st.builds(LengthSpec, st.just("fixed"), st.integers(0, MAX_TOKENS).map(float)),
        st.builds(
            LengthSpec,
            st.sampled_from(["normal", "lognormal"]),
            st.floats(0, MAX_TOKENS),
            st.floats(0, MAX_TOKENS),
        ),
        st.tuples(st.integers(0, MAX_TOKENS), st.integers(0, MAX_TOKENS)).map(
            lambda pair: LengthSpec("uniform", float(min(pair)), float(max(pair)))
        ),
    )
)
def test_the_text_of_a_length_reads_back(spec: LengthSpec) -> None:
    """str() loses nothing."""
    assert LengthSpec.parse(str(spec)) == spec


@given(_FRACTIONS, _FRACTIONS)
def test_lengths_rise_with_the_fraction(a: float, b: float) -> None:
    """A quantile function never falls."""
    for text in ("uniform:1:9", "normal:50:20", "lognormal:50:1"):
        spec = LengthSpec.parse(text)
        assert spec.at(min(a, b)) <= spec.at(max(a, b))


@pytest.mark.parametrize(
    ("text", "fixed"),
    [
        ("5", True),
        ("uniform:5:5", True),
        ("uniform:5:6", False),
        ("normal:5:0", True),
        ("normal:5:5", False),
        ("lognormal:1:1", False),
    ],
)
def test_is_fixed_knows_degenerate_distributions(text: str, fixed: bool) -> None:
    """A distribution of one value is fixed, and no other is."""
    assert LengthSpec.parse(text).is_fixed is fixed


@pytest.mark.parametrize(
    ("text", "mean"), [("7", 7.0), ("uniform:2:6", 4.0), ("normal:9:3", 9.0), ("lognormal:100:0", 100.0)]
)
def test_mean_is_the_expectation(text: str, mean: float) -> None:
    """By hand; lognormal:100:1 has the mean 100 e^0.5."""
    assert LengthSpec.parse(text).mean == mean
    assert LengthSpec.parse("lognormal:100:1").mean == pytest.approx(164.872)
