"""Tests of distbench.experiment.progress."""

from __future__ import annotations

from distbench.client.messages import Progress
from distbench.core.levels import LevelSpec
from distbench.experiment.progress import LevelTally

SPEC = LevelSpec(level=0, connections=8, requests=100, warmup=8)


def counters(client: int, *, ok: int, tokens: int, failed: int = 0, held: int = 4) -> Progress:
    """Return the counters of one client."""
    return Progress(
        client=client,
        connected=held,
        in_flight=held,
        waiting_parse=0,
        warmup_done=4,
        sent=ok + failed + held,
        ok=ok,
        failed=failed,
        cut=0,
        dropped=0,
        output_tokens=tokens,
        last_error="http_5xx: busy" if failed else None,
        at_ns=0,
    )


def test_tally_adds_up_clients_and_estimates_the_rest() -> None:
    """
    Two clients of 4 connections: after 2 s, 20 + 20 of 100 requests are done with 400 + 400 tokens, 10 of them within the first.

    Between the first counters (0 done, at 10 s) and the last (40 done, at 12 s) 20 requests/s were done: 60 left take 3 s.
    """
    tally = LevelTally(SPEC, start_s=10.0)
    tally.update(counters(0, ok=0, tokens=0), 10.0)
    tally.update(counters(1, ok=20, tokens=400), 12.0)
    tally.update(counters(0, ok=18, failed=2, tokens=400), 12.0)
    state = tally.state(12.0, running=8.0, waiting=None)
    assert (state.connected, state.in_flight, state.ok, state.failed) == (8, 8, 38, 2)
    assert state.output_tokens_per_s == 400.0
    assert state.remaining_s == 3.0
    assert state.elapsed_s == 2.0
    assert state.last_error == "http_5xx: busy"
    assert (state.running, state.waiting) == (8.0, None)


def test_a_lost_client_holds_nothing_but_keeps_what_it_did() -> None:
    """Connections of a dead client are gone, its finished requests are not."""
    tally = LevelTally(SPEC, start_s=0.0)
    tally.update(counters(0, ok=10, tokens=100), 1.0)
    tally.update(counters(1, ok=7, tokens=70), 1.0)
    tally.lose(1)
    state = tally.state(1.0, None, None)
    assert (state.connected, state.in_flight, state.ok, state.lost_clients) == (4, 4, 17, 1)


def test_nothing_known_gives_no_estimate() -> None:
    """Before two counters came, rate and remaining time are not known, which is not zero."""
    state = LevelTally(SPEC, start_s=0.0).state(0.5, None, None)
    assert state.output_tokens_per_s is None
    assert state.remaining_s is None
