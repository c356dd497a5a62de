"""What the servers' figures of a level amount to (floor F3, pure): the signs that diagnosis.py weighs, and their sentences."""

from __future__ import annotations

import math

from distbench.analysis.saturation import (
    KV_FULL_RATIO,
    MOST_SCRAPES_RATIO,
    PLATEAU_RATIO,
    is_clearly_below,
    is_pinned,
)
from distbench.analysis.server_view import ServerView

_KV_BUSY_RATIO = 0.85
# Fixed output lengths run in step: each time the requests of a wave end together, a scrape can find the slots between two waves.
_CAP_RATIO = 0.5
_SMALLEST_BUDGET = 32
# Budgets are powers of two in practice, and an engine with prompts waiting fills every step to it.
_BUDGET_TOLERANCE = 0.03
_UNFILLED_RATIO = 0.1
_STALE_RATIO = 0.5


def prompt_share(server: ServerView) -> float | None:
    """Return computed prompt tokens over all computed tokens; cached ones are not computed. None: not known."""
    if server.prompt_tokens is None or server.generation_tokens is None:
        return None
    computed = server.prompt_tokens - (server.prompt_tokens_cached or 0.0)
    total = computed + server.generation_tokens
    return computed / total if total > 0 else None


def prefill_time_share(server: ServerView) -> float | None:
    """Return a request's prefill time over its prefill and decode time; None: not known."""
    prefill, decode = server.prefill_time_mean_s, server.decode_time_mean_s
    if prefill is None or decode is None or prefill + decode <= 0:
        return None
    return prefill / (prefill + decode)


def queues(server: ServerView) -> bool:
    """Tell whether requests waited in most scrapes, and by their own time in the queue as well."""
    if server.waiting_ratio is None or server.waiting_ratio <= MOST_SCRAPES_RATIO:
        return False
    return not gauges_are_stale(server)


def gauges_are_stale(server: ServerView) -> bool:
    """
    Tell whether the queue that the gauges show is one that requests hardly spent time in.

    Engines set their gauges at the end of a step. While a step takes in a wave of prompts, for seconds, scrapes see the moment before
    it: all waiting. By Little's law the share of requests that wait is the share of their time that they wait.
    """
    queue_s, prefill_s, decode_s = (
        server.queue_time_mean_s,
        server.prefill_time_mean_s,
        server.decode_time_mean_s,
    )
    waiting, running = server.waiting_mean, server.running_mean
    if queue_s is None or prefill_s is None or decode_s is None or not waiting or running is None:
        return False
    inside_s = queue_s + prefill_s + decode_s
    if inside_s <= 0:
        return False
    return queue_s / inside_s < _STALE_RATIO * waiting / (waiting + running)


def stands_still(server: ServerView, connections: int) -> bool:
    """Tell whether running stands still in all engines together, or in each of several (whose sum may flicker), or bounces off a cap."""
    if is_pinned(server, connections) or is_capped(server, connections):
        return True
    plateaus = [engine.running_plateau_ratio for engine in server.engines]
    return len(plateaus) > 1 and all(ratio is not None and ratio >= PLATEAU_RATIO for ratio in plateaus)


def is_capped(server: ServerView, connections: int) -> bool:
    """Tell whether running was most often at exactly its highest, clearly below the connections: slots that are refilled in waves."""
    if server.running_max is None or server.running_cap_ratio is None:
        return False
    return (
        server.running_cap_ratio >= _CAP_RATIO
        and server.running_max > 1
        and is_clearly_below(server.running_max, connections)
    )


def step_budget(server: ServerView) -> int | None:
    """
    Return the tokens that every engine step was filled to, as far as the sizes of the steps show it.

    The counts book a prompt whole, its cached part included, in the step that ends it, and the first token beside it, which took no
    place in the step. So the mean is corrected for both. That the mean is a power of two may be chance: steps that are filled
    have no small ones among them, but for those in which a long prompt was only carried on.

    Returns:
        None: not filled to a budget, or not known.
    """
    mean = server.step_tokens_mean
    if mean is None or mean <= 0 or server.prompt_tokens is None or server.generation_tokens is None:
        return None
    booked = server.prompt_tokens + server.generation_tokens
    first_tokens = server.requests_finished or 0.0
    scheduled = booked - (server.prompt_tokens_cached or 0.0) - first_tokens
    # Steps that end no prompt look small; how many those are is known where the requests were counted.
    without_end = max(0.0, 1 - mean * first_tokens / booked) if first_tokens else 0.0
    mean *= scheduled / booked if 0 < scheduled <= booked else 1.0
    if mean < _SMALLEST_BUDGET / 2:
        return None
    budget: int = 2 ** round(math.log2(mean))
    if budget < _SMALLEST_BUDGET or abs(mean / budget - 1) > _BUDGET_TOLERANCE:
        return None
    small = next((share for tokens, share in server.step_buckets if tokens == budget / 2), None)
    if small is None:
        return budget
    return budget if small <= without_end + _UNFILLED_RATIO else None


def kv_full(server: ServerView) -> bool:
    """Tell whether the KV cache was full at its fullest, and nearly so all the time."""
    if server.kv_usage_max is None or server.kv_usage_mean is None:
        return False
    return server.kv_usage_max >= KV_FULL_RATIO and server.kv_usage_mean >= _KV_BUSY_RATIO


def next_does_not_fit(server: ServerView) -> bool:
    """Tell whether the free share of the cache is less than a running request takes on average."""
    if server.kv_usage_mean is None or not server.running_mean or server.kv_usage_mean < 0.5:
        return False
    per_engine = server.running_mean / max(len(server.engines), 1)
    return 1 - server.kv_usage_mean < server.kv_usage_mean / per_engine


def kv_text(server: ServerView) -> tuple[str, ...]:
    """Return the cache's numbers as a sentence; nothing where they are unknown."""
    if server.kv_usage_mean is None or server.kv_usage_max is None:
        return ()
    return (
        f"the KV cache was {server.kv_usage_mean:.0%} full on average and {server.kv_usage_max:.0%} at most",
    )


def queue_text(server: ServerView) -> tuple[str, ...]:
    """Return the queue's numbers as a sentence."""
    queue = "" if server.queue_time_mean_s is None else f", {ms(server.queue_time_mean_s)} in the queue each"
    return (f"{server.waiting_mean or 0:.1f} requests waited on average{queue}",)


def ms(seconds: float | None) -> str:
    """Return a time for people."""
    if seconds is None:
        return "an unknown time"
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
