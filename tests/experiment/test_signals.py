"""Ctrl-C and SIGTERM before and during the load."""

from __future__ import annotations

import contextlib
import os
import signal

import pytest

from distbench.experiment.signals import StopFlag


def test_sigterm_before_the_load_is_like_ctrl_c() -> None:
    """It unwinds what was begun, instead of ending the process where it stands; afterwards the old handler is back."""
    before = signal.getsignal(signal.SIGTERM)
    flag = StopFlag()
    flag.install_early()
    try:
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        flag.restore()
    assert not flag.is_set()
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_that_got_lost_is_raised_again(number: signal.Signals) -> None:
    """Once, where the load would begin; after that the flag is what counts."""
    flag = StopFlag()
    flag.install_early()
    try:
        with contextlib.suppress(KeyboardInterrupt):
            os.kill(os.getpid(), number)
        with pytest.raises(KeyboardInterrupt):
            flag.install()
        flag.install()
        assert not flag.is_set()
    finally:
        flag.restore()


def test_both_signals_set_the_flag_once_the_load_is_near() -> None:
    """Nothing is raised then; the level loop reads the flag."""
    before = signal.getsignal(signal.SIGINT)
    for number in (signal.SIGINT, signal.SIGTERM):
        flag = StopFlag()
        flag.install_early()
        flag.install()
        try:
            os.kill(os.getpid(), number)
            assert flag.wait(5.0)
        finally:
            flag.restore()
    assert signal.getsignal(signal.SIGINT) is before
