"""A level's verdict: the client first, then the ladder, then the gauges."""

import pytest

from distbench.analysis.case import LevelCase
from distbench.analysis.saturation import LevelVerdict, Verdict, gauge_fullness, judge_level, run_verdict
from tests.analysis.judging import DRIFTING, LIMITED, UNPROVEN, case, engine, full, ladder, server


def verdict_of(subject: LevelCase, *others: LevelCase) -> Verdict:
    """Judge a level among others."""
    return judge_level(subject, ladder(subject, *others)).verdict


BELOW, ABOVE = case(4, 50.0), case(16, 100.5)


@pytest.mark.parametrize(
    ("subject", "others", "expected"),
    [
        (case(8, 100.0, full(4)), [BELOW, ABOVE], Verdict.SATURATED),
        (case(8, 100.0, server(running_mean=8.0, running_max=8.0)), [BELOW, ABOVE], Verdict.SATURATED),
        (case(8, 100.0, None), [BELOW, ABOVE], Verdict.SATURATED),
        (case(8, 100.0, None, client=UNPROVEN), [BELOW, ABOVE], Verdict.UNKNOWN),
        (case(8, 100.0, full(4), client=UNPROVEN), [BELOW, ABOVE], Verdict.SATURATED),
        (case(8, 100.0, full(4)), [BELOW, case(16, 120.0)], Verdict.NOT_SATURATED),
        (case(8, 100.0, full(4), client=LIMITED), [BELOW, ABOVE], Verdict.CLIENT_LIMITED),
        (case(8, 100.0, full(4), stability=DRIFTING), [BELOW, ABOVE], Verdict.UNSTABLE),
        (case(8, 100.0, full(4), valid=False, invalid_reason="short"), [BELOW, ABOVE], Verdict.UNKNOWN),
        (case(8, 100.0, full(4), requests_ok=1, requests_failed=9), [BELOW, ABOVE], Verdict.UNKNOWN),
        (case(8, 100.0, full(4)), [], Verdict.SATURATED),
        (case(8, 100.0, server(running_mean=8.0, running_max=8.0)), [], Verdict.NOT_SATURATED),
        (case(8, 100.0, None), [], Verdict.UNKNOWN),
        (case(8, 100.0, full(4, scrapes=4)), [], Verdict.UNKNOWN),
        (case(8, 100.0, server(kv_usage_max=0.95)), [], Verdict.SATURATED),
        (case(8, 100.0, server(preemptions=3.0)), [], Verdict.SATURATED),
        (case(8, 100.0, server(kv_usage_max=0.96)), [BELOW], Verdict.NOT_SATURATED),
        (case(8, 100.0, full(6)), [BELOW], Verdict.SATURATED),
        (case(8, 100.0, server(running_mean=8.0, running_max=8.0)), [BELOW], Verdict.NOT_SATURATED),
        (case(8, 51.0, None), [BELOW], Verdict.SATURATED),
        (case(8, 100.0, None), [BELOW, case(16, 100.0, client=LIMITED)], Verdict.NOT_SATURATED),
    ],
    ids=[
        "queue and flat",
        "no queue, flat, proven client",
        "no metrics, flat, proven client",
        "no metrics, flat, unproven client",
        "queue, flat, unproven client",
        "the ladder overrules the gauges",
        "client",
        "drift",
        "invalid",
        "failing",
        "alone, queue",
        "alone, room",
        "alone, nothing known",
        "alone, too few scrapes",
        "alone, KV full",
        "alone, preemptions",
        "weak gauges at the top of a growing ladder",
        "queue and plateau at the top of a growing ladder",
        "room at the top of a growing ladder",
        "flat over the level below",
        "a limited client proves no flatness",
    ],
)
def test_verdict_of_a_level(subject: LevelCase, others: list[LevelCase], expected: Verdict) -> None:
    """Each rule of DESIGN section 6, with its counter-case."""
    assert verdict_of(subject, *others) is expected


def test_gain_within_noise_is_no_gain() -> None:
    """5 % more with 2 % standard error on both sides is not more than 3 % beyond noise; with 0.1 % error it is."""
    subject = case(8, 100.0, None)
    noisy = [
        LevelCase(row=c.row, server=None, client=c.client, rate_error=2.0) for c in (subject, case(16, 105.0))
    ]
    assert verdict_of(noisy[0], noisy[1]) is Verdict.SATURATED
    exact = [case(8, 100.0, level=1), case(8, 100.0, level=2), case(8, 100.0, level=3)]
    more = [case(16, 105.5, level=4 + i) for i in range(4)]
    assert verdict_of(exact[0], *exact[1:], *more) is Verdict.NOT_SATURATED


def test_every_engine_must_be_full() -> None:
    """One full engine of two makes the level imbalanced, not saturated, and the idle one is named."""
    engines = (
        engine("0", waiting_ratio=1.0),
        engine("1", waiting_ratio=0.0, kv_usage_max=0.1, preemptions=0.0),
    )
    found = judge_level(
        case(8, 100.0, full(4, engines=engines, running_plateau_ratio=0.2)),
        ladder(BELOW, case(8, 100.0), ABOVE),
    )
    assert found.verdict is Verdict.NOT_SATURATED
    assert found.fullness.imbalanced
    assert "not t engine 1" in found.evidence[0]
    both = (engine("0", waiting_ratio=1.0), engine("1", waiting_ratio=0.9))
    assert gauge_fullness(full(4, engines=both), 8).full is True


def test_evidence_has_the_numbers() -> None:
    """The sentences carry what was measured."""
    found = judge_level(case(8, 100.0, full(4, preemptions=3.0)), ladder(case(8, 100.0), ABOVE))
    assert found.evidence[:3] == (
        "requests waited in 90% of 10 scrapes (7.0 on average)",
        "running stood at 4 of 8 connections in 100% of the scrapes",
        "3 preemptions",
    )


def test_run_verdict_is_the_commonest_at_the_peak() -> None:
    """Unknown levels have no say; of equals the less flattering one counts."""

    def said(*words: Verdict) -> Verdict:
        fullness = gauge_fullness(None, 1)
        return run_verdict([LevelVerdict(verdict=w, evidence=(), fullness=fullness) for w in words])

    assert said(Verdict.SATURATED, Verdict.UNSTABLE, Verdict.SATURATED) is Verdict.SATURATED
    assert said(Verdict.SATURATED, Verdict.CLIENT_LIMITED) is Verdict.CLIENT_LIMITED
    assert said(Verdict.UNKNOWN, Verdict.SATURATED) is Verdict.SATURATED
    assert said(Verdict.UNKNOWN) is Verdict.UNKNOWN
