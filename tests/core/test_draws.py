"""Tests of distbench.core.draws."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distbench.core.draws import draw_bytes, draw_fractions, draw_seed, draw_u16


def test_draw_bytes_is_shake_128_of_the_place() -> None:
    """The bytes are those of SHAKE-128 over "seed|stream|place", computed here with another tool (openssl)."""
    # printf '7|user|measured|3|41' | openssl dgst -shake128 -xoflen 8
    assert draw_bytes(8, 7, "user", "measured", 3, 41).hex() == "ba30dccf4d97203b"


@given(st.integers(), st.text(max_size=8), st.lists(st.integers(), max_size=3), st.integers(0, 64))
def test_a_longer_draw_begins_with_the_shorter(seed: int, stream: str, place: list[int], size: int) -> None:
    """Texts of a place grow at their end only, so that a length changes nothing before it."""
    longer = draw_bytes(size + 10, seed, stream, *place)
    assert longer[:size] == draw_bytes(size, seed, stream, *place)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((0, "user", 1, 2), (1, "user", 1, 2)),
        ((0, "user", 1, 2), (0, "system", 1, 2)),
        ((0, "user", 1, 2), (0, "user", 2, 1)),
        ((0, "user", 1, 23), (0, "user", 12, 3)),
        ((-1, "user", 1), (1, "user", 1)),
    ],
    ids=["seed", "stream", "order", "digits", "sign"],
)
def test_draws_differ_in_every_part_of_the_place(a: tuple[int, str, int], b: tuple[int, str, int]) -> None:
    """Seed, purpose and each part of the place change the draw."""
    assert draw_bytes(16, *a) != draw_bytes(16, *b)


@given(st.integers())
def test_fractions_lie_strictly_between_zero_and_one(seed: int) -> None:
    """A fraction always has a finite normal quantile."""
    assert all(0.0 < fraction < 1.0 for fraction in draw_fractions(8, seed, "x"))


def test_numbers_are_uniform() -> None:
    """Ten thousand draws fill ten bins with about a thousand each (6 sigma is 180)."""
    bins = [0] * 10
    for number in draw_u16(10_000, 0, "x"):
        bins[number * 10 >> 16] += 1
    assert all(abs(count - 1000) < 180 for count in bins)
    assert 0.48 < sum(draw_fractions(10_000, 0, "y")) / 10_000 < 0.52


def test_draws_are_the_same_in_another_process() -> None:
    """Neither hash randomization nor anything else of a process enters a draw."""
    code = "from distbench.core.draws import *; print(draw_bytes(8, 7, 'user', 'a', 1).hex(), draw_seed(3, 's', 1))"
    environment = {**os.environ, "PYTHONHASHSEED": "12345"}
    printed = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    ).stdout
    assert printed.split() == [draw_bytes(8, 7, "user", "a", 1).hex(), str(draw_seed(3, "s", 1))]
