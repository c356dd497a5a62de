"""What holds for the scheduler and its cache whatever the load."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from distbench.sim.answers import Answer
from distbench.sim.kv_cache import KvCache
from distbench.sim.scheduler import Scheduler, SimRequest

BLOCK = 4
CONTEXT = 24

requests = st.tuples(
    st.integers(0, 2),  # group: prompts of one group share their start
    st.integers(1, 16),  # prompt length
    st.integers(1, 8),  # output length
)
# A request to add, or the number of one to abort.
events = st.lists(st.one_of(requests, st.integers(0, 30)), max_size=30)


def check_blocks(engine: Scheduler) -> None:
    """Every block is free or held, and held exactly as often as requests list it."""
    cache = engine.kv_cache
    held = Counter(block for request in engine.running for block in request.blocks)
    assert all(not request.blocks for request in engine.waiting)
    free = cache.free_order()
    assert len(set(free)) == len(free)
    assert set(free) | set(held) == set(range(1, cache.num_blocks))
    assert not set(free) & set(held)
    assert all(cache.num_references(block) == count for block, count in held.items())


def check_sharing(engine: Scheduler) -> None:
    """Two requests hold the same block only for the same tokens behind the same history."""
    seen: dict[int, tuple[int, ...]] = {}
    for request in engine.running:
        for position, block in enumerate(request.blocks):
            history = tuple(request.tokens[: (position + 1) * BLOCK])
            if engine.kv_cache.num_references(block) > 1:
                assert seen.setdefault(block, history) == history


@settings(max_examples=80, deadline=None)
@given(
    script=events,
    num_blocks=st.integers(CONTEXT // BLOCK + 1, 14),
    seqs=st.integers(1, 5),
    budget=st.integers(1, 20),
    caching=st.booleans(),
)
def test_blocks_requests_and_counters_are_conserved(
    script: list[tuple[int, int, int] | int],
    num_blocks: int,
    seqs: int,
    budget: int,
    caching: bool,
) -> None:
    """No block leaks or is shared wrongly, every request ends once with its length, the limits hold, the sums agree."""
    engine = Scheduler(
        KvCache(num_blocks, BLOCK, prefix_caching=caching), max_num_seqs=seqs, max_num_batched_tokens=budget
    )
    items: list[SimRequest] = []
    finished: list[SimRequest] = []
    produced = 0
    pending = list(script)
    steps = 0
    while pending or engine.num_unfinished:
        if pending:
            event = pending.pop(0)
            if isinstance(event, tuple):
                group, length, output = event
                item = SimRequest(
                    request_id=str(len(items)),
                    tokens=[group] * min(length, 9) + list(range(100, 100 + max(0, length - 9))),
                    num_prompt_tokens=length,
                    num_output_target=output,
                    source=Answer(group, 1024),
                )
                items.append(item)
                engine.add(item)
            elif items:
                engine.abort(items[event % len(items)])
        step = engine.schedule()
        assert sum(num_tokens for _, num_tokens in step.scheduled) <= budget
        assert len(engine.running) <= seqs
        assert step.num_decode_tokens + step.num_prefill_tokens == sum(n for _, n in step.scheduled)
        check_blocks(engine)
        check_sharing(engine)
        tokens = engine.complete(step)
        produced += len(tokens)
        finished += [item for item in tokens if item.finish_reason is not None]
        assert step.scheduled or not engine.num_unfinished, "requests wait and nothing is computed"
        steps += 1
        assert steps < 3000
    assert len(set(map(id, finished))) == len(finished)
    aborted = [item for item in items if item.finish_reason == "abort"]
    assert len(finished) + len(aborted) == len(items)
    assert all(item.num_output_tokens == item.num_output_target for item in finished)
    assert produced == sum(item.num_output_tokens for item in items)
    assert engine.counters.num_preemptions == sum(item.num_preemptions for item in items)
    admitted = [item for item in items if item.num_cached_tokens is not None]
    if caching:
        assert engine.counters.prefix_queried_tokens == sum(item.num_prompt_tokens for item in admitted)
        assert engine.counters.prefix_hit_tokens == sum(item.num_cached_tokens or 0 for item in admitted)
        assert all((item.num_cached_tokens or 0) < item.num_prompt_tokens for item in admitted)
    assert engine.kv_cache.num_free_blocks == num_blocks - 1
