"""The search on curves whose peak and knee are known by calculation, played with noise; its steps, stops and resumption."""

import dataclasses
import math
import random
from collections.abc import Callable

import pytest

from distbench.analysis.ceiling import ceiling, highest_meeting_slos
from distbench.analysis.ladder import LadderSettings, Measure, Stop, climb, next_step
from distbench.analysis.readings import Reading, settings_of
from distbench.analysis.time_to_go import time_to_go

Curve = Callable[[int], float]


def capped(limit: int, rate: float = 100.0) -> Curve:
    """Each connection brings ``rate`` up to ``limit`` of them: a server with so many sequences."""
    return lambda connections: rate * min(connections, limit)


def declining(limit: int, per_doubling: float) -> Curve:
    """As capped, but every doubling beyond the limit keeps only a share of the throughput."""

    def rate(connections: int) -> float:
        over = max(math.log2(connections / limit), 0.0)
        return 100.0 * min(connections, limit) * math.pow(per_doubling, over)

    return rate


def bending(half: float, top: float) -> Curve:
    """Throughput n / (n + half) of ``top``: step time grows with the batch."""
    return lambda connections: top * connections / (connections + half)


def play(
    curve: Curve, settings: LadderSettings, noise: float = 0.0, seed: int = 1
) -> tuple[list[Reading], Stop]:
    """Run a whole search against a curve; noise is the relative standard deviation of a reading."""
    source = random.Random(seed)
    history: list[Reading] = []
    while isinstance(step := next_step(history, settings), Measure):
        rate = curve(step.connections) * source.gauss(1, noise)
        history.append(
            Reading(
                level=len(history),
                connections=step.connections,
                repeat=step.repeat,
                rate=rate,
                request_rate=rate / 10,
                rate_error=noise * rate,
                stable=True,
            )
        )
        assert len(history) < 80
    return history, step


CASES = {
    "sequences 8": (capped(8), 1024, 800.0, 8),
    "sequences 16": (capped(16), 1024, 1600.0, 16),
    "sequences 48, between two rungs": (capped(48), 1024, 4800.0, 48),
    "sequences 256": (capped(256), 2048, 25600.0, 256),
    "sequences 2000": (capped(2000), 16384, 200000.0, 2000),
    "decline behind 100": (declining(100, 0.8), 1024, 10000.0, 100),
    "steep decline behind 90": (declining(90, 0.5), 1024, 9000.0, 90),
    "decline behind 1500": (declining(1500, 0.7), 8192, 150000.0, 1500),
    "decline behind 64": (declining(64, 0.9), 1024, 6400.0, 64),
}


@pytest.mark.parametrize("noise", [0.0, 0.01])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_peak_and_knee_are_found(case: tuple[Curve, int, float, int], noise: float) -> None:
    """The peak is within 3 % of the calculated one, and the knee within one step of the ladder."""
    curve, largest, peak, knee = case
    history, stop = play(curve, LadderSettings(max_connections=largest), noise)
    found = ceiling(history)
    assert stop.reason == "peak_passed"
    assert found is not None
    assert found.peak.output_token_rate == pytest.approx(peak, rel=0.03)
    assert knee / 2 <= found.knee.connections <= knee * 2
    assert found.peak.readings == 3
    assert found.peak.interval is not None


@pytest.mark.parametrize("noise", [0.0, 0.01])
@pytest.mark.parametrize(
    ("curve", "declines"),
    [(capped(64), False), (declining(64, 0.8), True)],
    ids=["flat", "declining"],
)
def test_decline_is_named_only_where_there_is_one(curve: Curve, declines: bool, noise: float) -> None:
    """Flat behind the peak is no decline; 0.8 a doubling is, with its ratio."""
    history, _ = play(curve, LadderSettings(max_connections=1024), noise)
    found = ceiling(history)
    assert found is not None
    assert (found.decline is not None) is declines
    if found.decline is not None:
        assert found.decline.ratio == pytest.approx(curve(found.decline.connections) / 6400, rel=0.04)


def test_ladder_that_still_grows_is_a_lower_bound() -> None:
    """With --max below the peak the search says so, and what to raise."""
    history, stop = play(capped(5000), LadderSettings(max_connections=100))
    assert stop.reason == "max_reached"
    assert "lower bound" in stop.text
    assert "--max" in stop.text
    assert history[7].connections == 100
    assert [r.connections for r in history[:8]] == [1, 2, 4, 8, 16, 32, 64, 100]


def test_levels_that_were_too_short_are_not_taken_for_the_maximum() -> None:
    """Growth up to 4 connections, and two levels behind it that cannot be judged: a lower bound, and no word of --max."""
    readings = [Reading(level=i, connections=c, rate=100.0 * c) for i, c in enumerate((1, 2, 4))]
    short = [
        Reading(level=3 + i, connections=c, rate=400.0, valid=False) for i, c in enumerate((8, 8, 16, 16))
    ]
    step = next_step([*readings, *short], LadderSettings(max_connections=16, repeats=0))
    assert isinstance(step, Stop)
    assert "above 4 connections were too short" in step.text
    assert "--max" not in step.text


def test_slow_growth_is_not_taken_for_flat() -> None:
    """4 % a level is below the noise of one step, but two such levels are not: the climb goes on."""
    history, stop = play(lambda n: 100 * n**0.06, LadderSettings(max_connections=64), noise=0.0)
    assert stop.reason == "max_reached"
    assert max(r.connections for r in history) == 64


def test_bending_curve_ends_where_two_levels_bring_nothing() -> None:
    """With n / (n + 16), from 512 on two doublings bring less than 3 % beyond noise; the knee is where 97 % of the peak is."""
    history, stop = play(bending(16, 1000), LadderSettings(max_connections=65536))
    found = ceiling(history)
    assert stop.reason == "peak_passed"
    assert found is not None
    assert found.peak.output_token_rate == pytest.approx(1000, rel=0.03)
    assert found.knee.connections in (256, 512)


def test_repeats_are_interleaved_and_exclude_the_selecting_reading() -> None:
    """Three rounds over the levels around the best, back and forth; the selecting reading is not in the peak's figure."""
    history, _ = play(capped(4), LadderSettings(max_connections=64))
    repeats = [(r.connections, r.repeat) for r in history[5:]]
    assert [r.connections for r in history[:5]] == [1, 2, 4, 8, 16]
    assert repeats == [(2, 1), (4, 1), (8, 1), (8, 2), (4, 2), (2, 2), (2, 3), (4, 3), (8, 3)]
    lucky = [dataclasses.replace(r, rate=500.0) if r.level == 2 else r for r in history]
    found = ceiling(lucky)
    assert found is not None
    assert (found.peak.connections, found.peak.output_token_rate) == (4, 400.0)


def test_interval_is_the_t_interval_of_the_repeats() -> None:
    """Repeats 100, 104, 108: 104 ± 4.303 · 4 / sqrt(3)."""
    rates = [110.0, 100.0, 104.0, 108.0]
    history = [Reading(level=i, connections=8, repeat=i, rate=rate) for i, rate in enumerate(rates)]
    found = ceiling(history)
    assert found is not None
    assert found.peak.output_token_rate == 104.0
    assert found.peak.interval == pytest.approx((104 - 9.9365, 104 + 9.9365), abs=1e-3)


def test_search_resumes_from_its_history() -> None:
    """Cut anywhere, the search takes the very next step it would have taken."""
    settings = LadderSettings(max_connections=1024)
    history, stop = play(declining(48, 0.7), settings)
    for cut in range(len(history)):
        step = next_step(list(reversed(history[:cut])), settings)
        assert isinstance(step, Measure)
        assert (step.connections, step.repeat) == (history[cut].connections, history[cut].repeat)
    assert next_step(history, settings) == stop


def test_explicit_list_is_measured_in_full() -> None:
    """A list is measured in its order, whatever it shows; then the levels around the best are repeated."""
    history, stop = play(capped(8), LadderSettings(connections=(64, 1, 8), repeats=2))
    assert [r.connections for r in history[:3]] == [64, 1, 8]
    assert {r.connections for r in history[3:]} == {1, 8, 64}
    assert len(history) == 3 + 6
    assert stop.reason == "list_done"


def test_list_that_ends_too_early_says_so() -> None:
    """What to add to --connections is said where the last level still brought more, and not where it did not."""
    _, growing = play(capped(64), LadderSettings(connections=(4, 8, 16)))
    _, flat = play(capped(8), LadderSettings(connections=(4, 8, 16)))
    assert (
        growing.text
        == "throughput still grew at 16 connections, the last of the list: add more to --connections"
    )
    assert flat.text == "all levels of the list are measured"


def test_list_whose_upper_levels_were_too_short_says_so() -> None:
    """Levels that could not be judged are not "measured": the ceiling may lie among them."""
    short = [Reading(level=i, connections=16, repeat=i, rate=None, valid=False, ok=10) for i in (2, 3)]
    lower = [Reading(level=i, connections=c, rate=c * 50.0, valid=True, ok=100) for i, c in enumerate((4, 8))]
    stop = next_step([*lower, *short], LadderSettings(connections=(4, 8, 16), repeats=0))
    assert isinstance(stop, Stop)
    assert (
        stop.text
        == "the levels above, of 16 connections, were too short to judge: raise --requests or --duration"
    )


def test_no_repeats_when_none_are_asked() -> None:
    """--repeats 0 leaves the readings single, and the peak without an interval."""
    history, _ = play(capped(4), LadderSettings(max_connections=64, repeats=0))
    found = ceiling(history)
    assert len(history) == 5
    assert found is not None
    assert found.peak.interval is None


def test_unusable_endpoint_stops_at_once() -> None:
    """All requests of the first level failed: no second level, and the reason in words."""
    reading = Reading(level=0, connections=1, rate=None, valid=False, ok=0, failed=10)
    stop = next_step([reading], LadderSettings())
    assert isinstance(stop, Stop)
    assert stop.reason == "unusable"
    assert stop.text.startswith("10 of 10 requests failed at 1 connections")


def test_errors_end_the_climb_and_the_best_is_still_repeated() -> None:
    """Past the point where most requests fail there is nothing to climb for; what was good is repeated."""
    history = [
        Reading(level=0, connections=1, rate=100.0),
        Reading(level=1, connections=2, rate=200.0),
        Reading(level=2, connections=4, rate=300.0, ok=4, failed=6),
    ]
    settings = LadderSettings(repeats=1)
    assert isinstance(climb(history, settings).next, Stop)
    step = next_step(history, settings)
    assert step == Measure(connections=1, repeat=1, phase="repeat", text="repeat 1 of 1 around the best")
    found = ceiling(history)
    assert found is not None
    assert found.peak.connections == 2


@pytest.mark.parametrize(
    ("change", "word", "longer"),
    [
        ({"valid": False}, "4 times as long, because it could not be judged", 4),
        ({"stable": False}, "drifted", 1),
    ],
    ids=["short", "drift"],
)
def test_unjudgeable_level_is_taken_once_more(change: dict[str, bool], word: str, longer: int) -> None:
    """
    The search does not judge on a short or drifting window: it measures again, once, and then goes on.

    What was too short once would be again, so that is longer.
    """
    bad = dataclasses.replace(Reading(level=0, connections=1, rate=100.0), **change)
    step = next_step([bad], LadderSettings())
    assert isinstance(step, Measure)
    assert (step.connections, step.repeat, step.phase, step.longer) == (1, 1, "again", longer)
    assert word in step.text
    step = next_step([bad, dataclasses.replace(bad, level=1, repeat=1)], LadderSettings())
    assert isinstance(step, Measure)
    assert step.connections == 2


def test_repeats_of_a_level_that_was_too_short_are_as_long_as_the_one_that_counts() -> None:
    """Repeats of the plan's length would be too short to judge again."""
    first = Reading(level=0, connections=4, rate=None, valid=False)
    longer = Reading(level=1, connections=4, repeat=1, rate=100.0, ok=100)
    other = Reading(level=2, connections=8, rate=50.0, ok=100)
    settings = LadderSettings(connections=(4, 8), repeats=1)
    step = next_step([first, longer, other], settings)
    assert isinstance(step, Measure)
    assert (step.connections, step.phase, step.longer) == (4, "repeat", 4)
    repeated = dataclasses.replace(longer, level=3, repeat=2)
    step = next_step([first, longer, other, repeated], settings)
    assert isinstance(step, Measure)
    assert (step.connections, step.phase, step.longer) == (8, "repeat", 1)


def test_three_unmeasurable_levels_end_the_search() -> None:
    """Windows that stay too short are a plan's fault: the search stops and says what to raise."""
    history = [
        Reading(level=2 * i + j, connections=2**i, repeat=j, rate=None, valid=False)
        for i in range(3)
        for j in range(2)
    ]
    stop = next_step(history, LadderSettings())
    assert isinstance(stop, Stop)
    assert stop.reason == "unmeasurable"


def test_two_flat_levels_are_needed() -> None:
    """One flat level goes on; the second one ends the climb."""
    rates = {1: 100.0, 2: 200.0, 4: 201.0}
    history = [Reading(level=i, connections=c, rate=r) for i, (c, r) in enumerate(rates.items())]
    state = climb(history, LadderSettings())
    assert isinstance(state.next, Measure)
    assert state.next.connections == 8
    state = climb([*history, Reading(level=3, connections=8, rate=199.0)], LadderSettings())
    assert isinstance(state.next, Stop)
    assert state.anchor is not None
    assert (state.anchor.connections, state.flat) == (2, 2)


def test_first_reading_that_counts_is_judged() -> None:
    """The judged reading is the first steady one; later ones are its repeats."""
    setting = settings_of(
        [
            Reading(level=3, connections=8, repeat=1, rate=90.0, stable=True),
            Reading(level=1, connections=8, repeat=0, rate=70.0, stable=False),
            Reading(level=5, connections=8, repeat=2, rate=91.0, stable=False),
        ]
    )[8]
    assert setting.rate == 90.0
    assert setting.repeat_rates == [91.0]
    assert setting.all_rates == [90.0]


def test_drifting_repeat_is_left_out_and_made_up_for() -> None:
    """A repeat that drifted is no figure of the peak; another takes its place, two at the most."""
    base = [Reading(level=i, connections=c, rate=100.0 * min(c, 2)) for i, c in enumerate((1, 2, 4, 8))]
    settings = LadderSettings(repeats=1)
    drifting = Reading(level=4, connections=1, repeat=1, rate=60.0, stable=False)
    step = next_step([*base, drifting], settings)
    assert isinstance(step, Measure)
    assert (step.connections, step.repeat) == (1, 2)
    lost = [dataclasses.replace(drifting, level=4 + i, repeat=1 + i) for i in range(3)]
    step = next_step([*base, *lost], settings)
    assert isinstance(step, Measure)
    assert (step.connections, step.repeat) == (2, 1)


def test_time_to_go_shrinks_to_nothing() -> None:
    """Before the first level it bounds the levels; at the end nothing is left; in between the bounds hold the truth."""
    settings = LadderSettings(max_connections=64)
    before = time_to_go([], settings, lambda c: max(400, 8 * c))
    assert (before.levels_min, before.seconds_min) == (9, None)
    history, _ = play(capped(8), settings)
    assert before.levels_min <= len(history) <= before.levels_max
    middle = time_to_go(history[:4], settings, lambda c: 100, overhead_s=1.0)
    assert middle.seconds_min is not None
    assert middle.seconds_max is not None
    truth = sum(100 / (r.request_rate or 1) + 1 for r in history[4:])
    assert middle.seconds_min <= truth * 1.05
    assert truth <= middle.seconds_max * 1.05
    after = time_to_go(history, settings, lambda c: 100)
    assert (after.levels_min, after.levels_max, after.seconds_max) == (0, 0, 0.0)


def test_highest_level_meeting_the_slos() -> None:
    """The most connections whose every reading has 99 % good requests; unknown is never met."""
    history = [
        Reading(level=0, connections=8, rate=1.0, good_ratio=1.0, goodput_rate=5.0, request_rate=5.0),
        Reading(level=1, connections=16, rate=1.0, good_ratio=0.995, goodput_rate=9.0, request_rate=9.1),
        Reading(level=2, connections=32, rate=1.0, good_ratio=0.995),
        Reading(level=3, connections=32, repeat=1, rate=1.0, good_ratio=0.98),
        Reading(level=4, connections=64, rate=1.0, good_ratio=None),
    ]
    best = highest_meeting_slos(history)
    assert best is not None
    assert (best.connections, best.goodput_rate) == (16, 9.0)
    assert highest_meeting_slos(history[4:]) is None
