"""
Was the server full? (floor F3, pure)

First the client is ruled out, then the ladder speaks, then the gauges: a level behind which another brings more than 3 % beyond noise was
not full, whatever its gauges say; a level behind which none does was full if the gauges show it, or if the client is proven not to
have been the limit. Flat without metrics and without that proof is unknown.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from enum import StrEnum

from distbench.analysis.case import FLAT_RATIO, Ladder, LevelCase
from distbench.analysis.server_view import MIN_SCRAPES, EngineView, ServerView

MOST_SCRAPES_RATIO = 0.5
PLATEAU_RATIO = 0.8
KV_FULL_RATIO = 0.95


class Verdict(StrEnum):
    """What is said of a level, and of a run."""

    SATURATED = "saturated"
    NOT_SATURATED = "not_saturated"
    CLIENT_LIMITED = "client_limited"
    UNSTABLE = "unstable"
    UNKNOWN = "unknown"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Fullness:
    """
    What the gauges say.

    Attributes:
        full: Whether every engine shows it is full; None where there are too few scrapes or no gauges.
        strong: Whether requests waited in most scrapes and running stood still below the connections at once.
        imbalanced: Whether some engines are full and others are not.
        evidence: Sentences with numbers.
    """

    full: bool | None
    strong: bool = False
    imbalanced: bool = False
    evidence: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LevelVerdict:
    """A level's verdict with its evidence; ``fullness`` is what the gauges alone say."""

    verdict: Verdict
    evidence: tuple[str, ...]
    fullness: Fullness


def judge_level(case: LevelCase, ladder: Ladder) -> LevelVerdict:
    """Judge one level of a run against all of them; a run of one level is judged by its gauges alone."""
    fullness = gauge_fullness(case.server, case.connections)
    verdict, evidence = _verdict(case, ladder, fullness)
    return LevelVerdict(verdict=verdict, evidence=evidence, fullness=fullness)


def _verdict(case: LevelCase, ladder: Ladder, fullness: Fullness) -> tuple[Verdict, tuple[str, ...]]:
    if case.client.limited:
        return Verdict.CLIENT_LIMITED, case.client.evidence
    if not case.row["valid"]:
        return Verdict.UNKNOWN, (f"not judged: {case.row['invalid_reason'] or 'invalid'}",)
    if case.reading.mostly_failed or not case.reading.counts:
        return Verdict.UNKNOWN, ("not judged: most requests failed, or nothing was measured",)
    if case.stability is not None and case.stability.stable is False:
        return Verdict.UNSTABLE, (case.stability.text,)
    further = ladder.further_gain(case.connections)
    if further is not None and further[0] > FLAT_RATIO:
        more = f"{further[1]} connections gave {further[0]:.0%} more, beyond noise"
        prefix = "gauges overruled: " if fullness.full else ""
        return Verdict.NOT_SATURATED, (more, *(prefix + text for text in fullness.evidence))
    below = ladder.gain_over_below(case.connections)
    if fullness.imbalanced:
        return Verdict.NOT_SATURATED, fullness.evidence
    return _flat_or_alone(case, fullness, further, below)


def _flat_or_alone(
    case: LevelCase,
    fullness: Fullness,
    further: tuple[float, int] | None,
    below: tuple[float, int] | None,
) -> tuple[Verdict, tuple[str, ...]]:
    """Judge a level behind which nothing grows, or nothing was measured."""
    flat = []
    if further is not None:
        flat.append(f"no level with more connections gave more than {FLAT_RATIO:.0%} on top, beyond noise")
    elif below is not None and below[0] <= FLAT_RATIO:
        flat.append(f"it gave no more than {below[1]} connections did, beyond noise")
    still_grew = below is not None and below[0] > FLAT_RATIO and further is None
    if fullness.full and (flat or not still_grew or fullness.strong):
        return Verdict.SATURATED, (*fullness.evidence, *flat)
    if flat and case.client.is_proven:
        return Verdict.SATURATED, (*flat, *fullness.evidence, *case.client.evidence)
    if flat:
        return Verdict.UNKNOWN, (*flat, "without metrics and without proof that the client was not the limit")
    if still_grew and below is not None:
        grew = f"throughput still grew by {below[0]:.0%} over {below[1]} connections, and no further level counts"
        return Verdict.NOT_SATURATED, (grew, *fullness.evidence)
    if fullness.full is False:
        return Verdict.NOT_SATURATED, fullness.evidence
    return Verdict.UNKNOWN, (*fullness.evidence, "no further level counts")


def gauge_fullness(server: ServerView | None, connections: int) -> Fullness:
    """
    Say whether the gauges show a full server.

    Args:
        server: None without metrics.
        connections: Of the level.

    Returns:
        full is None with fewer than 5 scrapes inside the window, or without the gauges of running and waiting.
    """
    if server is None or server.running_mean is None or server.waiting_ratio is None:
        return Fullness(full=None, evidence=("no gauges of the server",))
    if server.scrapes < MIN_SCRAPES:
        return Fullness(
            full=None, evidence=(f"only {server.scrapes} scrapes in the window: too few to judge by",)
        )
    evidence = tuple(_signs(server, connections))
    if len(server.engines) > 1:
        full = [engine for engine in server.engines if _engine_full(engine, server, connections)]
        if full and len(full) < len(server.engines):
            names = ", ".join(_name(e) for e in server.engines if e not in full)
            text = f"imbalanced: {len(full)} of {len(server.engines)} engines are full, not {names}"
            return Fullness(full=False, imbalanced=True, evidence=(text, *evidence))
        if not full:
            evidence = ()
    if evidence:
        strong = server.waiting_ratio > MOST_SCRAPES_RATIO and is_pinned(server, connections)
        return Fullness(full=True, strong=strong, evidence=evidence)
    room = f"the server had room: requests waited in {server.waiting_ratio:.0%} of the scrapes, running {server.running_mean:.1f}"
    kv = "" if server.kv_usage_max is None else f", KV cache at most {server.kv_usage_max:.0%} full"
    return Fullness(full=False, evidence=(room + kv,))


def is_pinned(server: ServerView, connections: int) -> bool:
    """Tell whether running stood on a plateau clearly below the connections."""
    if server.running_max is None or server.running_plateau_ratio is None:
        return False
    return (
        server.running_plateau_ratio >= PLATEAU_RATIO
        and server.running_max > 0
        and is_clearly_below(server.running_max, connections)
    )


def is_clearly_below(running: float, connections: int) -> bool:
    """Tell whether so many requests are fewer than the connections by more than a scrape may miss."""
    return running <= connections - max(1.0, 0.05 * connections)


def _signs(server: ServerView, connections: int) -> list[str]:
    signs = []
    if server.waiting_ratio is not None and server.waiting_ratio > MOST_SCRAPES_RATIO:
        signs.append(
            f"requests waited in {server.waiting_ratio:.0%} of {server.scrapes} scrapes ({server.waiting_mean:.1f} on average)"
        )
    if is_pinned(server, connections):
        signs.append(
            f"running stood at {server.running_max:.0f} of {connections} connections in {server.running_plateau_ratio:.0%} of the scrapes"
        )
    if server.kv_usage_max is not None and server.kv_usage_max >= KV_FULL_RATIO:
        signs.append(f"the KV cache was {server.kv_usage_max:.0%} full")
    if server.preemptions:
        signs.append(f"{server.preemptions:.0f} preemptions")
    return signs


def _engine_full(engine: EngineView, server: ServerView, connections: int) -> bool:
    if engine.waiting_ratio is not None and engine.waiting_ratio > MOST_SCRAPES_RATIO:
        return True
    if engine.kv_usage_max is not None and engine.kv_usage_max >= KV_FULL_RATIO:
        return True
    pinned = (
        is_pinned(server, connections)
        and engine.running_plateau_ratio is not None
        and engine.running_plateau_ratio >= PLATEAU_RATIO
    )
    return bool(engine.preemptions) or pinned


def _name(engine: EngineView) -> str:
    return f"{engine.target} engine {engine.engine}" if engine.engine else engine.target


def run_verdict(verdicts: Sequence[LevelVerdict]) -> Verdict:
    """
    Return the verdict of a run from those of the levels at its peak.

    The commonest of those that say something wins, the less flattering of equals; unknown where none does.
    """
    said: Counter[Verdict] = Counter(v.verdict for v in verdicts if v.verdict is not Verdict.UNKNOWN)
    order = (Verdict.CLIENT_LIMITED, Verdict.NOT_SATURATED, Verdict.UNSTABLE, Verdict.SATURATED)
    return max(order, key=lambda v: (said[v], -order.index(v))) if said else Verdict.UNKNOWN
