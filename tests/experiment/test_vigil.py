"""A target that is slow is measured; one that is gone ends the level."""

from __future__ import annotations

import socket

import pytest

from distbench.experiment.vigil import Vigil, connect_problem


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


def test_a_server_that_takes_connections_is_never_gone(timer: Timer) -> None:
    """A frozen server's kernel still takes connections: how long to wait for it is the time-outs' matter."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        vigil = Vigil([f"http://127.0.0.1:{server.getsockname()[1]}/v1"], quiet_limit_s=8, now_s=timer)
        told = []
        for _ in range(20):
            told.append(vigil.look((0, 0)))
            timer.now_s += 5
    assert told == [None] * 20


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
    with socket.create_server(("127.0.0.1", 0)) as server:
        urls = [closed_url(), f"http://127.0.0.1:{server.getsockname()[1]}"]
        vigil = Vigil(urls, quiet_limit_s=1, now_s=timer)
        told = []
        for _ in range(5):
            told.append(vigil.look(0))
            timer.now_s += 3
    assert told == [None] * 5


def test_the_problem_names_the_address() -> None:
    """With the system's own words."""
    url = closed_url()
    assert connect_problem(url) == f"{url} takes no connections any more (Connection refused)"
