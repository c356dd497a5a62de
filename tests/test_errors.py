"""Tests of distbench.errors."""

from __future__ import annotations

import pickle

import pytest

from distbench import errors
from distbench.errors import ClientLost, DistbenchError, PlanError

CASES: list[tuple[DistbenchError, int]] = [
    (PlanError(["connections must be at least 1, got 0", "unknown key 'x'"]), 2),
    (errors.StoreError("runs/x: not empty"), 2),
    (errors.PlacementError("8 clients asked, 4 placed"), 2),
    (errors.TargetError("cannot connect"), 4),
    (errors.FleetError("no word"), 1),
    (errors.ClientStartTimeout("client 3"), 1),
    (ClientLost(3, "node died"), 1),
    (errors.Interrupted("Ctrl-C"), 130),
]


def test_every_exception_is_in_the_table() -> None:
    """A new exception class must get its exit code and its pickle test here."""
    defined = {
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, DistbenchError)
    }
    assert {type(error) for error, _ in CASES} == defined - {DistbenchError}


@pytest.mark.parametrize(("error", "code"), CASES, ids=lambda value: type(value).__name__)
def test_exceptions_survive_pickle_with_their_exit_code(error: DistbenchError, code: int) -> None:
    """Errors cross process borders whole."""
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)
    assert copy.exit_code == code


def test_plan_error_keeps_problems_apart_and_takes_a_single_one() -> None:
    """All problems are there, in order; one string is one problem, not a list of letters."""
    assert PlanError(["a", "b"]).problems == ("a", "b")
    assert PlanError("only this").problems == ("only this",)
