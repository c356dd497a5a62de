"""
What limits a level, and what to change (floor F3, pure).

Only what a real server shows is used: gauges, counters, times. The rules are tried in an order in which an earlier one explains the signs
of the later ones away; each says what its numbers were. docs/verdicts.md has them in prose.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from enum import StrEnum

from distbench.analysis.case import FLAT_RATIO, Ladder, LevelCase
from distbench.analysis.saturation import LevelVerdict, Verdict
from distbench.analysis.signs import (
    gauges_are_stale,
    kv_full,
    kv_text,
    ms,
    next_does_not_fit,
    prefill_time_share,
    prompt_share,
    queue_text,
    queues,
    stands_still,
    step_budget,
)

_PREEMPTED_RATIO = 0.01
_PROMPT_SHARE = 0.5
_STREAM_AT_END_RATIO = 0.8
_AT_ONCE_RATIO = 0.2
_LUMPS_RATIO = 0.5
_MOST_BUNDLED_RATIO = 0.5
_MIN_MADE_OVER_S = 0.02
_SERVER_PART_RATIO = 0.5
_SAME_TIME_RATIO = 1.25
_MIN_STREAM_TOKENS = 4
_FRONTEND_SHARE = 0.7
_FRONTEND_GAP_S = 0.05
_STEP_GROWTH = 0.6


class Limit(StrEnum):
    """What a level runs into."""

    SEQUENCES = "sequences"
    KV_MEMORY = "kv_memory"
    BATCHED_TOKENS = "batched_tokens"
    PREFILL = "prefill"
    DECODE = "decode"
    SERVER_FRONTEND = "server_frontend"
    NETWORK = "network"
    CLIENT = "client"
    NONE_FOUND = "none_found"


REMEDIES: dict[Limit, str] = {
    Limit.SEQUENCES: "raise the number of sequences the engine runs at once (vLLM: --max-num-seqs) while KV memory allows, or add replicas",
    Limit.KV_MEMORY: "give the KV cache more memory (vLLM: --gpu-memory-utilization, a smaller or quantised cache type, more GPUs), or "
    "shorten contexts; fewer connections avoid the preemptions",
    Limit.BATCHED_TOKENS: "raise the tokens of one engine step (vLLM: --max-num-batched-tokens), reuse prefixes, or shorten prompts",
    Limit.PREFILL: "reuse prefixes (a shared system message first, prefix caching on), shorten prompts, or prefill on GPUs of its own",
    Limit.DECODE: "the engine's steps take longer with every sequence: faster memory, more tensor parallelism, quantisation or more replicas",
    Limit.SERVER_FRONTEND: "give the server's front end more processes (vLLM: --api-server-count) or CPU, or send fewer, larger chunks",
    Limit.NETWORK: "turn off response buffering on the way (nginx: proxy_buffering off; X-Accel-Buffering: no), or test without the proxy",
    Limit.CLIENT: "use more clients, or machines for them (--clients, --ray-address), and repeat",
    Limit.NONE_FOUND: "",
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """
    A limit with its evidence.

    Attributes:
        limit: none_found where nothing limits yet, or the signs name nothing.
        evidence: Sentences with numbers.
        remedy: What to change; "" where there is nothing.
    """

    limit: Limit
    evidence: tuple[str, ...]

    @property
    def remedy(self) -> str:
        """What to change; "" where nothing was found."""
        return REMEDIES[self.limit]


def diagnose(case: LevelCase, verdict: LevelVerdict, ladder: Ladder) -> Diagnosis:
    """
    Name what limits a level.

    Args:
        case: The level.
        verdict: Its verdict: a level that had room is asked only for what spoils its measurement (client, buffering).
        ladder: All levels, to tell what grows with the connections.
    """
    if verdict.verdict is Verdict.CLIENT_LIMITED:
        return Diagnosis(limit=Limit.CLIENT, evidence=case.client.evidence)
    buffered = _buffering(case, ladder)
    found = None
    if verdict.verdict is not Verdict.NOT_SATURATED:
        found = _named(case, ladder)
    if buffered is not None:
        # Buffering spoils what can be seen of the stream, so it is named first; the throughput has a limit of its own.
        also = (
            () if found is None else (f"beside it the signs of {found.limit}: {'; '.join(found.evidence)}",)
        )
        return Diagnosis(limit=Limit.NETWORK, evidence=(*buffered.evidence, *also))
    return found or Diagnosis(limit=Limit.NONE_FOUND, evidence=(_nothing(case, verdict),))


def _first_sign(case: LevelCase, ladder: Ladder) -> Diagnosis | None:
    rules: tuple[Callable[[LevelCase, Ladder], Diagnosis | None], ...] = (
        _preemptions,
        _batched_tokens,
        _sequences,
        _kv_memory,
        _queue,
        _server_frontend,
        _prefill,
        _decode,
    )
    return next((found for rule in rules if (found := rule(case, ladder)) is not None), None)


def _named(case: LevelCase, ladder: Ladder) -> Diagnosis | None:
    """Return the level's own sign, or that of the next level: where none is here, or where memory turns flat into falling."""
    own, behind = _first_sign(case, ladder), _sign_behind(case, ladder)
    if own is None or behind is None:
        return own or behind
    # Steps that grow make it flat; it falls when requests are thrown out of the cache and computed again.
    further = ladder.above(case.connections)
    falls = further is not None and (further.rate or 0.0) < (1 - FLAT_RATIO) * (case.rate or 0.0)
    return behind if own.limit is Limit.DECODE and behind.limit is Limit.KV_MEMORY and falls else own


def _sign_behind(case: LevelCase, ladder: Ladder) -> Diagnosis | None:
    """
    Look at the next level with more connections, which shows what stopped the growth.

    A level with exactly as many connections as the server takes has no queue yet: only what does not run behind it tells.
    """
    behind = ladder.above(case.connections)
    if behind is None or behind.client.limited:
        return None
    found = _first_sign(behind, ladder)
    if found is None:
        return None
    return Diagnosis(
        limit=found.limit,
        evidence=tuple(f"at {behind.connections} connections: {text}" for text in found.evidence),
    )


def _nothing(case: LevelCase, verdict: LevelVerdict) -> str:
    if verdict.verdict is Verdict.NOT_SATURATED:
        return "nothing limits it yet"
    return "without server metrics no limit can be named" if case.server is None else "no sign of a limit"


def _buffering(case: LevelCase, ladder: Ladder) -> Diagnosis | None:
    """Tokens that all come with the end of the answer, though the server made them one after the other."""
    if not _comes_at_the_end(case):
        return None
    # A front end that falls behind lumps streams too, but only under load; a buffering proxy does it to a single connection.
    lowest = ladder.lowest()
    if lowest is not None and lowest.connections < case.connections and not _comes_at_the_end(lowest):
        return None
    server, ttft, e2e = case.server, case.ttft_s, case.e2e_s
    evidence = [f"clients saw the first token after {ms(ttft)} of {ms(e2e)}: the answers arrive as a whole"]
    if server is not None and server.ttft_mean_s is not None and server.e2e_mean_s is not None:
        if e2e is not None and e2e > _SAME_TIME_RATIO * server.e2e_mean_s + _FRONTEND_GAP_S:
            return None
        evidence.append(
            f"the server made the first after {ms(server.ttft_mean_s)} and the last after {ms(server.e2e_mean_s)}: "
            "something in between holds tokens back"
        )
    bundled = case.row["bundled_ratio"]
    if bundled is not None:
        evidence.append(f"{bundled:.0%} of the chunks came together with others")
    return Diagnosis(limit=Limit.NETWORK, evidence=tuple(evidence))


def _comes_at_the_end(case: LevelCase) -> bool:
    """
    Tell whether an answer reaches the client at once, though it was made over time.

    Held against the server's own times the queue does not matter: both first tokens wait in it. Without them, a first token
    late in an answer says nothing while requests wait.
    """
    ttft, e2e, tokens = case.ttft_s, case.e2e_s, case.row["completion_tokens_mean"]
    if ttft is None or not e2e or tokens is None or tokens < _MIN_STREAM_TOKENS:
        return False
    server = case.server
    if server is not None and server.ttft_mean_s is not None and server.e2e_mean_s is not None:
        made_over = server.e2e_mean_s - server.ttft_mean_s
        # A proxy with several buffers hands an answer over in a few lumps: later than at once, and far from one by one.
        in_lumps = (case.row["bundled_ratio"] or 0.0) >= _MOST_BUNDLED_RATIO
        most = _LUMPS_RATIO if in_lumps else _AT_ONCE_RATIO
        return made_over >= _MIN_MADE_OVER_S and e2e - ttft <= most * made_over
    if server is not None and queues(server):
        return False
    return ttft / e2e >= _STREAM_AT_END_RATIO


def _preemptions(case: LevelCase, ladder: Ladder) -> Diagnosis | None:
    """Requests thrown out of the KV cache and computed again."""
    server = case.server
    if server is None or not server.preemptions:
        return None
    finished = server.requests_finished
    if finished and server.preemptions < _PREEMPTED_RATIO * finished and not kv_full(server):
        return None
    evidence = [
        f"{server.preemptions:.0f} preemptions" + (f" in {finished:.0f} requests" if finished else "")
    ]
    return Diagnosis(limit=Limit.KV_MEMORY, evidence=(*evidence, *kv_text(server)))


def _batched_tokens(case: LevelCase, ladder: Ladder) -> Diagnosis | None:
    """Every step is filled to its budget, mostly with prompt tokens, while requests wait."""
    server = case.server
    if server is None or not queues(server):
        return None
    share, budget = prompt_share(server), step_budget(server)
    if share is None or share < _PROMPT_SHARE or budget is None:
        return None
    evidence = (
        f"an engine step took {server.step_tokens_mean or budget:.0f} tokens on average, a full budget of {budget}",
        f"{share:.0%} of them were prompt tokens",
        *queue_text(server),
    )
    return Diagnosis(limit=Limit.BATCHED_TOKENS, evidence=evidence)


def _sequences(case: LevelCase, ladder: Ladder) -> Diagnosis | None:
    """Running stands on a plateau below the connections while requests wait, and memory is not why."""
    server = case.server
    if server is None or not queues(server) or not stands_still(server, case.connections):
        return None
    if kv_full(server) or next_does_not_fit(server):
        return None
    evidence = [
        f"running stood at {server.running_max:.0f} of {case.connections} connections "
        f"in {server.running_plateau_ratio or 0:.0%} of the scrapes",
        *queue_text(server),
    ]
    same = [
        other.connections
        for other in ladder.cases
        if other.connections > case.connections
        and other.server is not None
        and other.server.running_max == server.running_max
    ]
    if same:
        evidence.append(f"and no higher at {max(same)} connections")
    return Diagnosis(limit=Limit.SEQUENCES, evidence=(*evidence, *kv_text(server)))


def _kv_memory(case: LevelCase, ladder: Ladder) -> Diagnosis | None:
    """The KV cache is full, or too full for one more request, while requests wait."""
    server = case.server
    if server is None or not queues(server):
        return None
    if kv_full(server):
        return Diagnosis(limit=Limit.KV_MEMORY, evidence=(*kv_text(server), *queue_text(server)))
    if next_does_not_fit(server):
        return Diagnosis(
            limit=Limit.KV_MEMORY,
            evidence=(*kv_text(server), "what is left does not hold one more request", *queue_text(server)),
        )
    return None


def _queue(case: LevelCase, ladder: Ladder) -> Diagnosis | None:
    """Requests wait, but running neither stands still nor is memory full: prompts are taken in too slowly."""
    server = case.server
    if server is None or not queues(server):
        return None
    share, time_share = prompt_share(server), prefill_time_share(server)
    if (share is None or share < _PROMPT_SHARE) and (time_share is None or time_share < _PROMPT_SHARE):
        return None
    evidence = [
        *queue_text(server),
        f"running moved between levels ({server.running_mean:.1f} on average, no plateau)",
    ]
    if share is not None:
        evidence.append(f"{share:.0%} of the computed tokens were prompt tokens")
    return Diagnosis(limit=Limit.BATCHED_TOKENS, evidence=tuple(evidence))


def _server_frontend(case: LevelCase, ladder: Ladder) -> Diagnosis | None:
    """The engine is not busy with what the clients have in flight: it is stuck before or behind the engine."""
    server = case.server
    if server is None or queues(server):
        return None
    signs = []
    if server.ttft_mean_s is not None and case.ttft_s is not None:
        gap = case.ttft_s - server.ttft_mean_s
        if gap >= max(_FRONTEND_GAP_S, _SERVER_PART_RATIO * case.ttft_s):
            signs.append(
                f"clients wait {ms(case.ttft_s)} for the first token, the engine takes {ms(server.ttft_mean_s)}"
            )
    if server.e2e_mean_s is not None and case.e2e_s is not None:
        gap = case.e2e_s - server.e2e_mean_s
        if gap >= max(_FRONTEND_GAP_S, (1 - _FRONTEND_SHARE) * case.e2e_s):
            signs.append(
                f"clients wait {ms(case.e2e_s)} for the end, the engine takes {ms(server.e2e_mean_s)}"
            )
    in_flight = case.client.in_flight_mean or case.row["in_flight_mean"]
    if server.running_mean is not None and in_flight:
        inside = server.running_mean + (server.waiting_mean or 0.0)
        if inside < _FRONTEND_SHARE * in_flight:
            signs.append(f"the engine holds {inside:.1f} of the {in_flight:.1f} requests in flight")
    # The times are means of two populations, and the count may be a stale gauge: one sign alone is not enough.
    return Diagnosis(limit=Limit.SERVER_FRONTEND, evidence=tuple(signs)) if len(signs) >= 2 else None


def _prefill(case: LevelCase, ladder: Ladder) -> Diagnosis | None:
    """Nothing waits, and yet most of the work and of the time is prompts."""
    server = case.server
    if server is None:
        return None
    share, time_share = prompt_share(server), prefill_time_share(server)
    if time_share is None or time_share < _PROMPT_SHARE or (share is not None and share < _PROMPT_SHARE):
        return None
    evidence = [f"{time_share:.0%} of a request's time in the engine was prefill"]
    if share is not None:
        evidence.append(f"{share:.0%} of the computed tokens were prompt tokens")
    if gauges_are_stale(server):
        evidence.append(
            f"the {server.waiting_mean or 0:.1f} requests that the gauges show waiting are those of the moment before a long step: "
            f"a request spent {ms(server.queue_time_mean_s)} in the queue"
        )
    return Diagnosis(limit=Limit.PREFILL, evidence=tuple(evidence))


def _decode(case: LevelCase, ladder: Ladder) -> Diagnosis | None:
    """All requests run, and a step takes longer in proportion to their number."""
    below = ladder.below(case.connections)
    if below is None:
        return None
    step, step_before = _step_time(case), _step_time(below)
    if step is None or not step_before or case.rate is None or not below.rate:
        return None
    growth = math.log(step / step_before) / math.log(case.connections / below.connections)
    # Flat as the verdict means it: beyond noise.
    gains = (ladder.further_gain(case.connections), ladder.gain_over_below(case.connections))
    flat = any(gain is not None and gain[0] <= FLAT_RATIO for gain in gains)
    if not flat or growth < _STEP_GROWTH:
        return None
    evidence = (
        f"a token takes {ms(step_before)} at {below.connections} connections and {ms(step)} at {case.connections}",
        "throughput does not grow with them",
    )
    return Diagnosis(limit=Limit.DECODE, evidence=evidence)


def _step_time(case: LevelCase) -> float | None:
    """Return the time of an engine step: the server's inter-token latency, else the clients' time per output token."""
    if case.server is not None and case.server.itl_mean_s is not None:
        return case.server.itl_mean_s
    value: float | None = case.row["tpot_p50_s"]
    return value
