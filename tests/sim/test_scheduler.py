"""Continuous batching, by hand-worked examples (blocks of 4 tokens, numbers small enough to follow)."""

from __future__ import annotations

import pytest

from distbench.sim.kv_cache import KvCache
from distbench.sim.scheduler import Scheduler, SimRequest, Step, least_loaded


class Counting:
    """Answers with the positions themselves."""

    def token_at(self, position: int) -> int:
        """Return 1000 + position."""
        return 1000 + position


def request(name: str, prompt: list[int], output: int) -> SimRequest:
    """Build a request that ends by length."""
    return SimRequest(
        request_id=name,
        tokens=list(prompt),
        num_prompt_tokens=len(prompt),
        num_output_target=output,
        source=Counting(),
    )


def prompt(first: int, length: int) -> list[int]:
    """Build a prompt that shares nothing with those of another ``first``."""
    return [first * 100 + position for position in range(length)]


def scheduler(blocks: int = 100, *, seqs: int = 8, budget: int = 64, caching: bool = True) -> Scheduler:
    """Build a scheduler with this many usable blocks."""
    return Scheduler(
        KvCache(blocks + 1, 4, prefix_caching=caching), max_num_seqs=seqs, max_num_batched_tokens=budget
    )


def names(step: Step) -> list[tuple[str, int]]:
    """Return what a step computes, by name."""
    return [(item.request_id, num_tokens) for item, num_tokens in step.scheduled]


def run_step(engine: Scheduler) -> list[tuple[str, int]]:
    """Schedule and complete a step; return what it computed."""
    step = engine.schedule()
    engine.complete(step)
    return names(step)


def test_prompt_is_computed_in_one_step_and_gives_the_first_token() -> None:
    """A 6-token prompt within the budget: one step, one token; then one token a step until the target ends it."""
    engine = scheduler()
    item = request("a", prompt(1, 6), 3)
    engine.add(item)
    assert [run_step(engine) for _ in range(4)] == [[("a", 6)], [("a", 1)], [("a", 1)], []]
    assert item.tokens[6:] == [1000, 1001, 1002]
    assert item.finish_reason == "length"
    assert engine.kv_cache.num_free_blocks == 100


def test_long_prompt_is_chunked_behind_the_decodes() -> None:
    """Budget 8: the running decode takes 1 token, the new 20-token prompt is computed as 7 + 7 + 6."""
    engine = scheduler(budget=8)
    engine.add(request("a", prompt(1, 4), 9))
    run_step(engine)
    engine.add(request("b", prompt(2, 20), 2))
    steps = [run_step(engine) for _ in range(4)]
    assert steps == [
        [("a", 1), ("b", 7)],
        [("a", 1), ("b", 7)],
        [("a", 1), ("b", 6)],
        [("a", 1), ("b", 1)],
    ]


def test_budget_is_shared_first_come_first_served() -> None:
    """Budget 10: prompts of 6 and 6 are admitted together, the second with the 4 tokens left; a third waits."""
    engine = scheduler(budget=10)
    for name in ("a", "b", "c"):
        engine.add(request(name, prompt(ord(name), 6), 2))
    assert run_step(engine) == [("a", 6), ("b", 4)]
    assert run_step(engine) == [("a", 1), ("b", 2), ("c", 6)]


def test_max_num_seqs_bounds_the_running() -> None:
    """Two run, the third is admitted in the step after one has ended."""
    engine = scheduler(seqs=2)
    for name, output in (("a", 2), ("b", 5), ("c", 2)):
        engine.add(request(name, prompt(ord(name), 4), output))
    assert run_step(engine) == [("a", 4), ("b", 4)]
    assert run_step(engine) == [("a", 1), ("b", 1)]
    assert run_step(engine) == [("b", 1), ("c", 4)]


def test_admission_needs_blocks_for_the_whole_prompt_but_allocates_the_chunk() -> None:
    """5 blocks, budget 8: a 24-token prompt (6 blocks) never starts; a 20-token one starts with 2 blocks for its 8-token chunk."""
    engine = scheduler(5, budget=8)
    engine.add(request("a", prompt(1, 24), 1))
    assert run_step(engine) == []
    assert engine.abort(engine.waiting[0])
    engine.add(request("b", prompt(2, 20), 1))
    assert run_step(engine) == [("b", 8)]
    assert engine.kv_cache.num_free_blocks == 3


def test_first_that_does_not_fit_blocks_those_behind_it() -> None:
    """First come first served: a small request does not overtake one that waits for blocks."""
    engine = scheduler(4)
    for name, length in (("a", 8), ("b", 12), ("c", 4)):
        engine.add(request(name, prompt(ord(name), length), 4))
    assert run_step(engine) == [("a", 8)]
    assert [item.request_id for item in engine.waiting] == ["b", "c"]


def test_latest_admitted_is_preempted_and_goes_to_the_front() -> None:
    """
    3 blocks of 4. a (4 tokens) and b (4 tokens) hold one block each; the second token needs a second block for each: a gets the
    last, b finds none and preempts itself; it is recomputed when a has ended, with the token it had made.
    """
    engine = scheduler(3, caching=False)
    a, b = request("a", prompt(1, 4), 3), request("b", prompt(2, 4), 3)
    engine.add(a)
    engine.add(b)
    assert run_step(engine) == [("a", 4), ("b", 4)]
    step = engine.schedule()
    assert names(step) == [("a", 1)]
    assert [item.request_id for item in step.preempted] == ["b"]
    assert (b.status, b.num_preemptions, b.num_computed_tokens, b.blocks) == ("waiting", 1, 0, [])
    engine.complete(step)
    # 5 tokens of b need 2 blocks, 1 is free: it waits for a's end.
    assert run_step(engine) == [("a", 1)]
    assert run_step(engine) == [("b", 5)]
    assert run_step(engine) == [("b", 1)]
    assert b.tokens[4:] == [1000, 1001, 1002]
    assert engine.counters.num_preemptions == 1


def test_nothing_is_admitted_in_a_step_that_preempts() -> None:
    """The blocks of the victim are not given to a waiting request in the same step."""
    engine = scheduler(3, caching=False)
    for name in ("a", "b"):
        engine.add(request(name, prompt(ord(name), 4), 9))
    run_step(engine)
    engine.add(request("c", prompt(3, 4), 1))
    step = engine.schedule()
    assert names(step) == [("a", 1)]
    assert [item.request_id for item in engine.waiting] == ["b", "c"]


def test_prefix_counters_count_admissions_once() -> None:
    """a: 10 tokens, no hit. b, the same 8 first tokens: 2 blocks = 8 of 10 tokens hit. Queried 20, hit 8."""
    engine = scheduler()
    engine.add(request("a", [*prompt(1, 8), 7, 7], 1))
    run_step(engine)
    b = request("b", [*prompt(1, 8), 9, 9], 1)
    engine.add(b)
    assert run_step(engine) == [("b", 2)]
    assert (engine.counters.prefix_queried_tokens, engine.counters.prefix_hit_tokens) == (20, 8)
    assert b.num_cached_tokens == 8


def test_identical_prompt_recomputes_at_least_its_last_block() -> None:
    """A prompt of 12 tokens = 3 full blocks, all cached: (12 - 1) // 4 = 2 blocks hit, the last one is computed."""
    engine = scheduler()
    for name in ("a", "b"):
        engine.add(request(name, prompt(1, 12), 1))
        assert run_step(engine) == ([("a", 12)] if name == "a" else [("b", 4)])


def test_requests_of_one_step_share_blocks_registered_in_it() -> None:
    """A block is registered when it is scheduled: of two equal prompts admitted in one step the second hits."""
    engine = scheduler()
    for name in ("a", "b"):
        engine.add(request(name, prompt(1, 10), 1))
    assert run_step(engine) == [("a", 10), ("b", 2)]


def test_answers_are_cached_too() -> None:
    """A conversation's next turn hits the blocks of the answer: 4 prompt + 5 answer tokens, of which 8 were computed: 2 blocks."""
    engine = scheduler()
    first = request("a", prompt(1, 4), 5)
    engine.add(first)
    for _ in range(5):
        run_step(engine)
    engine.add(request("b", [*first.tokens, 5, 5, 5], 1))
    assert run_step(engine) == [("b", 4)]


def test_readmission_after_preemption_is_counted_apart() -> None:
    """Prefix-cache counters leave recomputation out: 8 queried by the two admissions, b's 5 tokens in the other counter."""
    engine = scheduler(3)
    for name in ("a", "b"):
        engine.add(request(name, prompt(ord(name), 4), 3))
    for _ in range(4):
        run_step(engine)
    counters = engine.counters
    assert (counters.num_preemptions, counters.prefix_queried_tokens, counters.preempted_queried_tokens) == (
        1,
        8,
        5,
    )
    # b's block with its 4 prompt tokens was still cached when it came back.
    assert (counters.prefix_hit_tokens, counters.preempted_hit_tokens) == (0, 4)


@pytest.mark.parametrize("started", [False, True], ids=["waiting", "running"])
def test_abort_frees_everything(started: bool) -> None:
    """An aborted request leaves its queue and its blocks; a second abort does nothing."""
    engine = scheduler()
    item = request("a", prompt(1, 9), 5)
    engine.add(item)
    if started:
        run_step(engine)
    assert engine.abort(item)
    assert not engine.abort(item)
    assert (engine.num_unfinished, engine.kv_cache.num_free_blocks, item.finish_reason) == (0, 100, "abort")


def test_step_tells_what_it_costs() -> None:
    """One decode (length 6 when the step ends) beside a prompt of 10: D = 1, P = 10, K = 6 + 10."""
    engine = scheduler()
    engine.add(request("a", prompt(1, 5), 5))
    run_step(engine)
    engine.add(request("b", prompt(2, 10), 5))
    step = engine.schedule()
    assert (step.num_decode_tokens, step.num_prefill_tokens, step.num_kv_tokens) == (1, 10, 16)


def test_least_loaded_weighs_waiting_four_times() -> None:
    """5 running beat 1 running + 1 waiting as they are 5 against 5: the first of equals; 4 running win against it."""
    engines = [scheduler(), scheduler()]
    engines[0].running = [request(str(n), [1], 1) for n in range(5)]
    engines[1].running = [request("r", [1], 1)]
    engines[1].waiting.append(request("w", [1], 1))
    assert least_loaded(engines) == 0
    engines[0].running.append(request("6", [1], 1))
    assert least_loaded(engines) == 1
