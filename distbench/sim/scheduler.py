"""
Continuous batching as vLLM's V1 scheduler does it (floor F3, pure: no clock, no I/O).

One step of an engine: ``schedule()`` decides what is computed, the caller lets the time pass that it takes, ``complete()`` gives
every request whose tokens are all computed its next token. There is no prefill or decode phase: each request has tokens and a
number of computed tokens, and a step brings the second towards the first within the budget ``max_num_batched_tokens``.

Kept of vLLM 0.32 (first come first served, synchronous scheduling, no speculation):

1. Running requests come first, oldest first, each with one decode token or the next chunk of its prompt. One that finds no free
   block preempts the latest admitted request, itself at last: blocks freed, computed tokens forgotten, back to the *front* of
   the waiting queue, recomputed later with the tokens it had made.
2. Waiting requests are admitted in order while there is budget, fewer than ``max_num_seqs`` run, nobody was preempted in this
   step, and the *whole* sequence fits into free blocks (only the chunk is allocated). The first that does not fit stops it.
3. Prefix-cache counters count a request at its admission, all its tokens as queried; admissions after a preemption are counted
   apart.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Sequence
from typing import Any, Literal, Protocol

from distbench.sim.kv_cache import KvCache, chain_hash

FinishReason = Literal["stop", "length", "abort", "error"]


class TokenSource(Protocol):
    """Where the tokens of an answer come from."""

    def token_at(self, position: int) -> int:
        """Return the id of the answer's token at a position, 0-based."""
        ...


@dataclasses.dataclass(slots=True, kw_only=True, eq=False)
class SimRequest:
    """
    One sequence and its state; the scheduler owns every field but ``owner`` and the stamps, which are the engine's.

    Attributes:
        request_id: Name, for people only.
        tokens: Prompt and, behind it, the tokens made so far.
        num_prompt_tokens: Length of the prompt; >= 1.
        num_output_target: Tokens it makes before it ends; >= 1.
        ends_by: How it ends when the target is reached.
        source: Gives the tokens.
        num_cached_tokens: Prompt tokens served by the prefix cache at the first admission; None before it.
        owner: Whatever the caller wants to find again.
    """

    request_id: str
    tokens: list[int]
    num_prompt_tokens: int
    num_output_target: int
    source: TokenSource
    ends_by: Literal["stop", "length"] = "length"
    owner: Any = None
    max_tokens: int = 0

    status: Literal["waiting", "running", "finished"] = "waiting"
    finish_reason: FinishReason | None = None
    num_computed_tokens: int = 0
    num_preemptions: int = 0
    num_cached_tokens: int | None = None
    num_counted_tokens: int = 0
    blocks: list[int] = dataclasses.field(default_factory=list)
    hashes: list[int] = dataclasses.field(default_factory=list)
    num_registered_blocks: int = 0

    arrival_ns: int = 0
    scheduled_ns: int | None = None
    first_token_ns: int | None = None
    last_token_ns: int | None = None

    @property
    def num_output_tokens(self) -> int:
        """Tokens made so far."""
        return len(self.tokens) - self.num_prompt_tokens


@dataclasses.dataclass(slots=True, kw_only=True)
class Counters:
    """Sums since the start, counted as vLLM counts them."""

    num_steps: int = 0
    num_preemptions: int = 0
    prefix_queried_tokens: int = 0
    prefix_hit_tokens: int = 0
    preempted_queried_tokens: int = 0
    preempted_hit_tokens: int = 0


@dataclasses.dataclass(slots=True, kw_only=True)
class Step:
    """
    What one step computes.

    Attributes:
        scheduled: Requests with the tokens each computes in this step; the order is that of admission.
        admitted: Those among them that were waiting before.
        preempted: Requests that lost their blocks to this step.
        num_prefill_tokens: Tokens of prompts (and of answers recomputed after a preemption).
        num_decode_tokens: Sequences that compute one token behind all others.
        num_kv_tokens: KV entries read: per request, its length when the step ends.
    """

    scheduled: list[tuple[SimRequest, int]] = dataclasses.field(default_factory=list)
    admitted: list[SimRequest] = dataclasses.field(default_factory=list)
    preempted: list[SimRequest] = dataclasses.field(default_factory=list)
    num_prefill_tokens: int = 0
    num_decode_tokens: int = 0
    num_kv_tokens: int = 0


class Scheduler:
    """
    The queues of one engine.

    Args:
        kv_cache: Its blocks; at least one request of ``max_model_len`` must fit, else it could wait for ever.
        max_num_seqs: Most requests that run together.
        max_num_batched_tokens: Most tokens that one step computes.
    """

    def __init__(self, kv_cache: KvCache, *, max_num_seqs: int, max_num_batched_tokens: int) -> None:
        self.kv_cache = kv_cache
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.running: list[SimRequest] = []
        self.waiting: deque[SimRequest] = deque()
        self.counters = Counters()

    @property
    def num_unfinished(self) -> int:
        """Requests running or waiting."""
        return len(self.running) + len(self.waiting)

    def add(self, request: SimRequest) -> None:
        """Put a new request at the end of the waiting queue."""
        self._extend_hashes(request)
        self.waiting.append(request)

    def abort(self, request: SimRequest) -> bool:
        """Drop a request wherever it is; False if it had ended before. Not between schedule() and complete()."""
        if request.status == "finished":
            return False
        if request.status == "running":
            self.running.remove(request)
        else:
            self.waiting.remove(request)
        self._finish(request, "abort")
        return True

    def schedule(self) -> Step:
        """Decide the next step and account for it; ``step.scheduled`` is empty when nothing can be computed."""
        step = Step()
        budget = self._schedule_running(step, self.max_num_batched_tokens)
        if not step.preempted:
            self._admit_waiting(step, budget)
        for request, num_tokens in step.scheduled:
            if num_tokens == 1 and request.num_computed_tokens + 1 == len(request.tokens):
                step.num_decode_tokens += 1
            else:
                step.num_prefill_tokens += num_tokens
            request.num_computed_tokens += num_tokens
            step.num_kv_tokens += request.num_computed_tokens
        self.counters.num_steps += bool(step.scheduled)
        return step

    def complete(self, step: Step) -> list[SimRequest]:
        """
        End a step.

        Returns:
            The requests that got a token, in the step's order; ``finish_reason`` is set on those that ended with it.
        """
        produced: list[SimRequest] = []
        any_finished = False
        for request, _num_tokens in step.scheduled:
            if request.num_computed_tokens < len(request.tokens):
                continue  # a prompt that needs more chunks
            request.tokens.append(request.source.token_at(request.num_output_tokens))
            produced.append(request)
            if len(request.tokens) - request.num_prompt_tokens >= request.num_output_target:
                any_finished = True
                self._finish(request, request.ends_by)
        if any_finished:
            self.running = [request for request in self.running if request.status == "running"]
        return produced

    def _schedule_running(self, step: Step, budget: int) -> int:
        """Give running requests their tokens, preempting from the end of the list; return the budget left."""
        index = 0
        while index < len(self.running) and budget > 0:
            request = self.running[index]
            num_tokens = min(len(request.tokens) - request.num_computed_tokens, budget)
            if not self._allocate_or_preempt(step, request, request.num_computed_tokens + num_tokens):
                break
            step.scheduled.append((request, num_tokens))
            budget -= num_tokens
            index += 1
        return budget

    def _allocate_or_preempt(self, step: Step, request: SimRequest, num_tokens: int) -> bool:
        """Allocate slots for a running request; False when it had to preempt itself."""
        kv_cache = self.kv_cache
        if num_tokens > len(request.blocks) * kv_cache.block_size:
            while not kv_cache.allocate(num_tokens, request.blocks):
                victim = self.running.pop()
                self._preempt(victim)
                step.preempted.append(victim)
                if victim is request:
                    return False
        self._register(request, num_tokens)
        return True

    def _admit_waiting(self, step: Step, budget: int) -> None:
        while self.waiting and budget > 0 and len(self.running) < self.max_num_seqs:
            request = self.waiting[0]
            length = len(request.tokens)
            self._extend_hashes(request)
            hits = self.kv_cache.match_prefix(request.hashes, length)
            num_hit_tokens = len(hits) * self.kv_cache.block_size
            num_tokens = min(length - num_hit_tokens, budget)
            if not self.kv_cache.can_allocate(length, (), hits):
                break
            self.kv_cache.allocate(num_hit_tokens + num_tokens, request.blocks, hits)
            self.waiting.popleft()
            self.running.append(request)
            self._count_admission(request, num_hit_tokens)
            request.status = "running"
            request.num_computed_tokens = num_hit_tokens
            request.num_registered_blocks = len(hits)
            self._register(request, num_hit_tokens + num_tokens)
            step.scheduled.append((request, num_tokens))
            step.admitted.append(request)
            budget -= num_tokens

    def _count_admission(self, request: SimRequest, num_hit_tokens: int) -> None:
        if request.num_cached_tokens is None:
            request.num_cached_tokens = num_hit_tokens
        if not self.kv_cache.prefix_caching:
            return
        if request.num_preemptions:
            self.counters.preempted_queried_tokens += len(request.tokens)
            self.counters.preempted_hit_tokens += num_hit_tokens
        else:
            self.counters.prefix_queried_tokens += len(request.tokens)
            self.counters.prefix_hit_tokens += num_hit_tokens

    def _preempt(self, request: SimRequest) -> None:
        self._release(request)
        request.status = "waiting"
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        self.counters.num_preemptions += 1
        self.waiting.appendleft(request)

    def _finish(self, request: SimRequest, reason: FinishReason) -> None:
        request.status = "finished"
        request.finish_reason = reason
        self._release(request)

    def _release(self, request: SimRequest) -> None:
        self.kv_cache.free(request.blocks)
        request.blocks = []
        request.num_registered_blocks = 0

    def _register(self, request: SimRequest, num_tokens: int) -> None:
        """Register the blocks that are full once the step has computed the first ``num_tokens`` tokens."""
        num_full = num_tokens // self.kv_cache.block_size
        if num_full <= request.num_registered_blocks or not self.kv_cache.prefix_caching:
            return
        self._extend_hashes(request)
        self.kv_cache.register(request.blocks, request.hashes, request.num_registered_blocks, num_full)
        request.num_registered_blocks = num_full

    def _extend_hashes(self, request: SimRequest) -> None:
        """Hash the blocks that have become full since the last call."""
        if not self.kv_cache.prefix_caching:
            return
        size = self.kv_cache.block_size
        hashes = request.hashes
        for position in range(len(hashes), len(request.tokens) // size):
            parent = hashes[position - 1] if position else None
            hashes.append(chain_hash(parent, request.tokens[position * size : (position + 1) * size]))


def least_loaded(schedulers: Sequence[Scheduler]) -> int:
    """
    Choose the engine of a new request, as vLLM's internal data-parallel balancer does.

    Returns:
        Index of the engine with the smallest 4 x waiting + running; the first of equals.
    """
    loads = [4 * len(s.waiting) + len(s.running) for s in schedulers]
    return loads.index(min(loads))
