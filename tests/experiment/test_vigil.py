"""A target that is slow is measured; one that is gone ends the level."""

from __future__ import annotations

import socket

import pytest

from distbench.experiment import vigil as vigil_module
from distbench.experiment.vigil import Problem, Vigil, connect_problem
from tests.support.stub_server import stub_server


class Timer:
    """Seconds that the test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def timer() -> Timer:
    """Give a timer."""
    return Timer()


def closed_url() -> str:
    """Return the URL of a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}/v1"


def test_a_slow_server_that_still_answers_is_never_gone(timer: Timer) -> None:
    """Not one token for 100 s, but it says that it knows no such path: how long to wait for it is the time-outs' matter."""
    with stub_server({}) as (url, _):
        vigil = Vigil([f"{url}/v1"], quiet_limit_s=8, frozen_limit_s=20, now_s=timer)
        told = []
        for _ in range(20):
            told.append(vigil.look((0, 0)))
            timer.now_s += 5
    assert told == [None] * 20


def test_a_server_that_only_takes_connections_is_frozen_after_a_while(
    timer: Timer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its kernel takes connections, nobody answers: not before 20 s, then after two tries."""
    monkeypatch.setattr(vigil_module, "_ANSWER_LIMIT_S", 0.05)
    monkeypatch.setattr(vigil_module, "_PATIENCE_S", 5.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/v1"
        vigil = Vigil([url], quiet_limit_s=8, frozen_limit_s=20, now_s=timer)
        told = {}
        for at_s in (100, 108, 111, 119, 121, 124):
            timer.now_s = at_s
            told[at_s] = vigil.look((0, 0))
    assert [at_s for at_s, text in told.items() if text is not None] == [124]
    assert "takes connections but answers nothing" in str(told[124])


def test_a_try_that_takes_long_holds_nothing_up(timer: Timer, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a frozen server is waited for, look() returns; a token meanwhile makes the try void."""
    monkeypatch.setattr(vigil_module, "_ANSWER_LIMIT_S", 0.5)
    monkeypatch.setattr(vigil_module, "_PATIENCE_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        vigil = Vigil(
            [f"http://127.0.0.1:{server.getsockname()[1]}/v1"], quiet_limit_s=1, frozen_limit_s=1, now_s=timer
        )
        told = []
        for at_s, tokens in ((100, 0), (102, 0), (104, 0), (106, 1), (106.5, 1)):
            timer.now_s = at_s
            told.append(vigil.look(tokens))
    assert told == [None] * 5


def test_nothing_for_a_while_and_two_refusals_are_gone(timer: Timer) -> None:
    """Nothing moves from 100 s on: looked at at 108 s (refused) and 110 s (refused again)."""
    vigil = Vigil([closed_url()], quiet_limit_s=8, now_s=timer)
    told = {}
    for at_s in (100, 104, 107.9, 108, 109, 110):
        timer.now_s = at_s
        told[at_s] = vigil.look((5, 7))
    assert [at_s for at_s, text in told.items() if text is not None] == [110]
    assert "takes no connections any more (Connection refused)" in str(told[110])


def test_any_answer_begins_the_wait_anew(timer: Timer) -> None:
    """A token at 107 s: nothing is tried before 115 s."""
    vigil = Vigil([closed_url()], quiet_limit_s=8, now_s=timer)
    told = []
    for at_s, tokens in ((100, 1), (107, 2), (109, 2), (114, 2)):
        timer.now_s = at_s
        told.append(vigil.look(tokens))
    assert told == [None] * 4


def test_one_replica_that_lives_keeps_the_level_going(timer: Timer) -> None:
    """The failures of the other are figures."""
    with stub_server({}) as (url, _):
        urls = [closed_url(), f"{url}/v1"]
        vigil = Vigil(urls, quiet_limit_s=1, now_s=timer)
        told = []
        for _ in range(5):
            told.append(vigil.look(0))
            timer.now_s += 3
    assert told == [None] * 5


def test_the_problem_names_the_address() -> None:
    """With the system's own words."""
    url = closed_url()
    assert connect_problem(url) == Problem(f"{url} takes no connections any more (Connection refused)")
