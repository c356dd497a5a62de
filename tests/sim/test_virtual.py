"""Capacities in virtual time: exact, because nothing waits for a real clock."""

from __future__ import annotations

import pytest

from distbench.sim.settings import SimSettings
from distbench.sim.step_time import StepTimeSettings
from distbench.sim.virtual import Arrival, simulate

CONSTANT = StepTimeSettings(
    fixed_s=0.02, weights_s=0.0, per_sequence_s=0.0, per_prefill_token_s=0.0, per_kv_token_s=0.0
)


def load(count: int, prompt: int, output: int) -> list[Arrival]:
    """Build requests that share nothing."""
    return [
        Arrival(prompt=tuple(range(n * 1000, n * 1000 + prompt)), output_tokens=output) for n in range(count)
    ]


def test_capacity_is_sequences_over_step_time() -> None:
    """8 sequences, 20 ms a step: 8 / 0.02 = 400 tokens/s; 64 answers of 50 tokens are 8 waves of 50 steps = 8 s."""
    result = simulate(SimSettings(max_num_seqs=8, step_time=CONSTANT), load(64, 32, 50), connections=16)
    assert result.end_ns == 8_000_000_000
    assert result.tokens_per_s() == 400.0


@pytest.mark.parametrize(("connections", "expected"), [(1, 50.0), (4, 200.0), (8, 400.0), (32, 400.0)])
def test_throughput_rises_with_connections_and_flattens(connections: int, expected: float) -> None:
    """Below the limit each connection adds 1 / 0.02 = 50 tokens/s; above it nothing is added."""
    result = simulate(
        SimSettings(max_num_seqs=8, step_time=CONSTANT), load(64, 32, 50), connections=connections
    )
    assert result.tokens_per_s() == expected


def test_latency_grows_with_waiting() -> None:
    """Beyond the limit a request waits for a whole answer before it: 50 steps, so its first token comes after 51."""
    result = simulate(SimSettings(max_num_seqs=8, step_time=CONSTANT), load(16, 32, 50), connections=16)
    assert result.served[0].token_ns[0] == 20_000_000
    assert result.served[8].token_ns[0] == 51 * 20_000_000


def test_prompts_share_the_token_budget() -> None:
    """Budget 100, four prompts of 50: two are computed per step, so first tokens come at 1, 1, 2, 2 steps."""
    settings = SimSettings(max_num_seqs=8, max_num_batched_tokens=100, step_time=CONSTANT)
    result = simulate(settings, load(4, 50, 1))
    assert [item.token_ns[0] // 20_000_000 for item in result.served] == [1, 1, 2, 2]


def test_overload_makes_throughput_fall_beyond_its_peak() -> None:
    """
    20 ms, and 1 ms more for each unfinished request beyond 8. At 8 connections 400 tokens/s; at 28 a step takes 40 ms: half of it
    while all 28 connections are busy.
    """
    slower = StepTimeSettings(
        fixed_s=0.02,
        weights_s=0.0,
        per_sequence_s=0.0,
        per_prefill_token_s=0.0,
        per_kv_token_s=0.0,
        overload_after=8,
        overload_per_request_s=0.001,
    )
    settings = SimSettings(max_num_seqs=8, step_time=slower)
    assert simulate(settings, load(64, 32, 50), connections=8).tokens_per_s() == 400.0
    crowded = simulate(settings, load(128, 32, 50), connections=28)
    assert crowded.tokens_per_s(0, 4_000_000_000) == 200.0


def test_data_parallel_engines_double_the_capacity() -> None:
    """Two engines of 4 sequences carry what one of 8 does, each with half of the requests."""
    settings = SimSettings(max_num_seqs=4, data_parallel_size=2, step_time=CONSTANT)
    result = simulate(settings, load(64, 32, 50), connections=8)
    assert result.tokens_per_s() == 400.0
    assert [sum(item.engine == engine for item in result.served) for engine in (0, 1)] == [32, 32]


def test_shared_prefix_is_hit_block_exactly() -> None:
    """A shared start of 93 tokens, blocks of 16: 5 blocks = 80 tokens are hit by each request after the first."""
    shared = tuple(range(93))
    requests = [
        Arrival(prompt=(*shared, *range(n * 100 + 1000, n * 100 + 1070)), output_tokens=4) for n in range(5)
    ]
    result = simulate(SimSettings(), requests, connections=1)
    assert [item.cached_tokens for item in result.served] == [0, 80, 80, 80, 80]


def test_open_loop_keeps_its_arrival_times() -> None:
    """Requests 1 s apart meet an idle server: each gets its first token 20 ms after its arrival."""
    requests = [Arrival(prompt=(1, 2, 3), output_tokens=2, arrival_ns=n * 1_000_000_000) for n in range(3)]
    result = simulate(SimSettings(step_time=CONSTANT), requests)
    assert [item.token_ns[0] - item.arrival_ns for item in result.served] == [20_000_000] * 3
