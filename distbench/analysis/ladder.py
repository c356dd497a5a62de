"""
The search for the ceiling, as a pure function of what was measured so far (floor F3).

Climb: connections grow by a factor until two levels in a row bring no more than the level that grew last (beyond noise), or errors,
or the maximum, end it. Refine: where the far side of the best level falls, the peak may lie between two rungs (refine.py).
Repeat: the levels around the best, interleaved, so that a drift of the server hits all of them alike. An interrupted search goes on
from its history.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from distbench.analysis.readings import MAX_ATTEMPTS, Reading, Setting, gain_beyond_noise, settings_of
from distbench.analysis.refine import promising_gap

FLAT_RATIO = 0.03
_FLAT_LEVELS_TO_STOP = 2
_UNMEASURABLE_TO_STOP = 3
_MAX_REFINEMENTS = 6
_MAX_LOST_REPEATS = 2
# A level in which most connections did not finish three requests has them finish some with this.
_LONGER = 4


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LadderSettings:
    """
    The search's settings.

    Attributes:
        start, max_connections, factor: The geometric ladder; the maximum is its last rung.
        connections: An explicit list instead, measured in full and in order; empty: the ladder.
        repeats: Repeats of each level around the best; 0: none.
        refine: Look between the rungs beside a best level with a decline behind it (ladder only).
    """

    start: int = 1
    max_connections: int = 1024
    factor: float = 2.0
    connections: tuple[int, ...] = ()
    repeats: int = 3
    refine: bool = True

    def rungs(self) -> tuple[int, ...]:
        """Return the connections of the climb, ascending for the ladder, as given for a list."""
        if self.connections:
            return tuple(dict.fromkeys(self.connections))
        rungs = [self.start]
        power = 1
        while rungs[-1] < self.max_connections:
            wanted = math.floor(self.start * self.factor**power + 0.5)
            power += 1
            if wanted > rungs[-1]:
                rungs.append(min(wanted, self.max_connections))
        return tuple(rungs)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """
    Measure this next.

    Attributes:
        connections: The setting.
        repeat: How many readings it has already: the ``repeat`` of the level.
        phase: climb | again | refine | repeat.
        text: Why, for people.
        longer: How many times as long as the plan says: a level that was too short once is not measured like that again.
    """

    connections: int
    repeat: int
    phase: str
    text: str
    longer: int = 1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """
    The search is over.

    Attributes:
        reason: peak_passed | max_reached | list_done | errors | unusable | unmeasurable.
        text: One sentence, with what to do where there is something to do.
    """

    reason: str
    text: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Climb:
    """
    What the climb has come to.

    Attributes:
        next: What to measure, or why the climb has ended.
        anchor: The last level that grew: fewest connections with, to within 3 % and noise, the most throughput; None: no reading.
        flat: Levels in a row after the anchor that fell or stayed flat.
    """

    next: Measure | Stop
    anchor: Setting | None
    flat: int


def climb(history: Sequence[Reading], settings: LadderSettings) -> Climb:
    """Replay the climb over a history."""
    measured = settings_of(history)
    anchor: Setting | None = None
    flat = 0
    unmeasurable = 0
    for rung in settings.rungs():
        setting = measured.get(rung)
        following = _next_at(rung, setting, anchor)
        if following is not None:
            return Climb(next=following, anchor=anchor, flat=flat)
        if setting is None or setting.judged is None:
            unmeasurable += 1
            if unmeasurable >= _UNMEASURABLE_TO_STOP and not settings.connections:
                return Climb(next=_unmeasurable(rung), anchor=anchor, flat=flat)
            continue
        unmeasurable = 0
        if anchor is None or anchor.judged is None or _grew(setting.judged, anchor.judged):
            anchor, flat = setting, 0
        else:
            flat += 1
        if flat >= _FLAT_LEVELS_TO_STOP and not settings.connections:
            return Climb(next=_peak_passed(anchor, flat), anchor=anchor, flat=flat)
    end = (
        _end_of_list(measured, anchor, flat)
        if settings.connections
        else _end_of_rungs(settings, anchor, flat)
    )
    return Climb(next=end, anchor=anchor, flat=flat)


def next_step(history: Sequence[Reading], settings: LadderSettings) -> Measure | Stop:
    """
    Say what to do next.

    Args:
        history: All readings so far, in any order; those of an earlier, interrupted search included.
        settings: Must not change within a search.

    Returns:
        What to measure, or why it is over; equal histories give equal steps.
    """
    state = climb(history, settings)
    if isinstance(state.next, Measure):
        return state.next
    measured = settings_of(history)
    best = best_setting(measured)
    if best is None or state.next.reason == "unusable":
        return state.next
    step = _refinement(measured, best, settings) if settings.refine and not settings.connections else None
    return step or _repeat(measured, state.anchor, settings) or state.next


def best_setting(measured: Mapping[int, Setting]) -> Setting | None:
    """Return the setting whose judged reading is the highest; the fewest connections of equals; None without any."""
    judged = [setting for setting in measured.values() if setting.rate is not None]
    return max(judged, key=lambda s: (s.rate or 0.0, -s.connections), default=None)


def around_best(measured: Mapping[int, Setting], anchor: Setting | None) -> tuple[int, ...]:
    """Return the settings that are repeated: the best, its neighbours, and the level that grew last."""
    judged = [connections for connections, setting in measured.items() if setting.rate is not None]
    best = best_setting(measured)
    if best is None:
        return ()
    place = judged.index(best.connections)
    chosen = set(judged[max(place - 1, 0) : place + 2])
    if anchor is not None:
        chosen.add(anchor.connections)
    return tuple(sorted(chosen))


def _next_at(rung: int, setting: Setting | None, anchor: Setting | None) -> Measure | Stop | None:
    """Return what a rung still needs, or that its errors end the climb; None where the climb can judge it and go on."""
    if setting is None:
        return Measure(connections=rung, repeat=0, phase="climb", text="the next rung")
    if setting.judged is not None:
        return None
    last = setting.readings[-1]
    if last.mostly_failed:
        return _errors(last, anchor)
    if len(setting.readings) >= MAX_ATTEMPTS:
        return None
    longer = _longer(setting)
    why = "because its throughput drifted" if last.counts else "because it could not be judged"
    length = "" if longer == 1 else f", {longer} times as long"
    return Measure(
        connections=rung,
        repeat=len(setting.readings),
        phase="again",
        text=f"once more{length}, {why}",
        longer=longer,
    )


def _longer(setting: Setting | None) -> int:
    return 1 if setting is None or setting.readings[0].counts else _LONGER


def _grew(reading: Reading, anchor: Reading) -> bool:
    return gain_beyond_noise(reading, anchor) > FLAT_RATIO


def _errors(reading: Reading, anchor: Setting | None) -> Stop:
    share = f"{reading.failed} of {reading.ok + reading.failed} requests failed at {reading.connections} connections"
    if anchor is None:
        return Stop(reason="unusable", text=f"{share}: the endpoint is not usable under load")
    return Stop(reason="errors", text=f"{share}: the search stops there")


def _peak_passed(anchor: Setting | None, flat: int) -> Stop:
    where = anchor.connections if anchor else 0
    return Stop(
        reason="peak_passed",
        text=f"{flat} levels in a row gave no more than {where} connections: the peak is passed",
    )


def _unmeasurable(rung: int) -> Stop:
    return Stop(
        reason="unmeasurable",
        text=f"{_UNMEASURABLE_TO_STOP} levels up to {rung} connections were too short to judge: raise --requests or --duration",
    )


def _end_of_list(measured: Mapping[int, Setting], anchor: Setting | None, flat: int) -> Stop:
    grown = anchor.connections if anchor else 0
    unjudged = sorted(c for c in measured if c > grown and measured[c].judged is None)
    text = "all levels of the list are measured"
    if unjudged:
        those = ", ".join(map(str, unjudged))
        text = f"the levels above, of {those} connections, were too short to judge: raise --requests or --duration"
    elif not flat and len(measured) > 1 and grown == max(measured):
        text = (
            f"throughput still grew at {grown} connections, the last of the list: add more to --connections"
        )
    return Stop(reason="list_done", text=text)


def _end_of_rungs(settings: LadderSettings, anchor: Setting | None, flat: int) -> Stop:
    if flat:
        return Stop(
            reason="max_reached",
            text=f"{settings.max_connections} connections gave no more, but one such level is not enough: raise --max to be sure",
        )
    grown = anchor.connections if anchor else settings.max_connections
    if grown < settings.rungs()[-1]:
        return Stop(
            reason="max_reached",
            text=f"the levels above {grown} connections were too short to judge: a lower bound; raise --requests or --duration",
        )
    return Stop(
        reason="max_reached",
        text=f"throughput still grew at {grown} connections, the most allowed: a lower bound; raise --max",
    )


def _refinement(measured: Mapping[int, Setting], best: Setting, settings: LadderSettings) -> Measure | None:
    """Return a level to try between two rungs, where the levels behind the best one fell; None: the peak is located."""
    judged = [setting for setting in measured.values() if setting.judged is not None]
    rungs = set(settings.rungs())
    tried = sum(1 for connections in measured if connections not in rungs)
    place = judged.index(best)
    fallen = any(
        _grew(best.judged, setting.judged)
        for setting in judged[place + 1 :]
        if best.judged is not None and setting.judged is not None
    )
    if not fallen or tried >= _MAX_REFINEMENTS:
        return None
    gap = promising_gap([(s.connections, s.rate or 0.0) for s in judged], place)
    if gap is None:
        return None
    before = measured.get(gap.connections)
    attempts = 0 if before is None else len(before.readings)
    if attempts >= MAX_ATTEMPTS:
        return None
    return Measure(
        connections=gap.connections,
        repeat=attempts,
        phase="refine",
        text=f"between {gap.low} and {gap.high} there may be up to {gap.gain_ratio:.0%} more",
        longer=_longer(before),
    )


def _repeats_done(setting: Setting, wanted: int) -> int:
    """Count the repeats that can be used; after two that cannot, the setting is left as it is."""
    if len(setting.repeats) >= wanted + _MAX_LOST_REPEATS:
        return wanted
    return min(setting.steady_repeats, wanted)


def _repeat(
    measured: Mapping[int, Setting], anchor: Setting | None, settings: LadderSettings
) -> Measure | None:
    """Return the next of the interleaved repeats; None when all have theirs."""
    chosen = around_best(measured, anchor)
    done = {connections: _repeats_done(measured[connections], settings.repeats) for connections in chosen}
    round_now = min(done.values(), default=settings.repeats)
    if round_now >= settings.repeats:
        return None
    # Every other round runs downwards, so that a steady drift does not favour one end.
    order = chosen if round_now % 2 == 0 else tuple(reversed(chosen))
    connections = next(c for c in order if done[c] == round_now)
    return Measure(
        connections=connections,
        repeat=len(measured[connections].readings),
        phase="repeat",
        text=f"repeat {round_now + 1} of {settings.repeats} around the best",
        longer=_longer(measured[connections]),
    )
