"""What a run says of itself: findings.json's form, and sentences that follow the numbers both ways."""

import json
import math
from collections.abc import Sequence
from typing import Any

import pytest

from distbench.analysis.case import LevelCase
from distbench.analysis.client_limit import Verification
from distbench.analysis.findings import Finding, Judgement, findings_json, judge
from distbench.analysis.ladder import Stop
from distbench.analysis.remarks import remarks
from distbench.telemetry.detect import Continuity
from distbench.telemetry.gpu import GpuView
from tests.analysis.judging import DRIFTING, LIMITED, UNPROVEN, case, full, rising, server

PASSED = Stop(
    reason="peak_passed", text="2 levels in a row gave no more than 4 connections: the peak is passed"
)
MAXED = Stop(
    reason="max_reached", text="throughput still grew at 8 connections, the most allowed: raise --max"
)


def search(*, top: float = 400.0, views: Sequence[Any] | None = None) -> list[LevelCase]:
    """Return a search: 100 a connection up to 4 of them, three repeats of each level around the best."""
    views = views or [server(running_mean=1.0), server(running_mean=2.0), full(4), full(4), full(4)]
    first = [
        case(c, min(100.0 * c, top), v, level=i)
        for i, (c, v) in enumerate(zip((1, 2, 4, 8, 16), views, strict=True))
    ]
    repeats = [
        case(c, min(100.0 * c, top) + d, views[i], level=5 + 3 * n + i, repeat=n + 1)
        for n, d in enumerate((-4.0, 0.0, 4.0))
        for i, c in ((1, 2), (2, 4), (3, 8))
    ]
    return [*first, *repeats]


def found(judgement: Judgement, kind: str, **options: Any) -> list[Finding]:
    """Return the findings of one kind."""
    return [finding for finding in remarks(judgement, **options) if finding.kind == kind]


def test_findings_json_has_the_contracts_form() -> None:
    """Schema, verdict, limit, peak with the repeats' interval, knee, no decline, client, one entry a level."""
    judgement = judge(search(), stop=PASSED)
    content = findings_json(judgement, remarks(judgement))
    half = 4.302652729911275 * 4 / math.sqrt(3)
    assert list(content)[:8] == [
        "schema",
        "verdict",
        "limit",
        "lower_bound",
        "peak",
        "knee",
        "decline",
        "client",
    ]
    assert (content["schema"], content["verdict"], content["limit"]) == (1, "saturated", "sequences")
    assert content["lower_bound"] is False
    assert content["peak"]["connections"] == 4
    assert content["peak"]["output_token_rate"] == 400.0
    assert content["peak"]["request_rate"] == 40.0
    assert content["peak"]["interval"] == pytest.approx([400 - half, 400 + half])
    assert set(content["knee"]) == {"connections", "request_rate", "output_token_rate", "interval"}
    assert content["decline"] is None
    assert content["client"] == {"limited": False, "evidence": ["connections idled 0.10% of their time"]}
    assert len(content["levels"]) == 14
    assert set(content["levels"][0]) == {"level", "connections", "verdict", "limit", "evidence"}
    assert content["levels"][0]["verdict"] == "not_saturated"
    assert all(set(f) == {"kind", "severity", "text", "evidence"} for f in content["findings"])
    assert content["findings"][0]["kind"] == "ceiling"
    json.dumps(content, allow_nan=False)


def test_lower_bound_is_said_with_what_to_raise() -> None:
    """A ladder that still grew at its maximum: not saturated, a lower bound, raise --max."""
    views = [server(running_mean=float(2**i), running_max=float(2**i)) for i in range(4)]
    judgement = judge(rising(views, [100.0, 200.0, 400.0, 800.0]), stop=MAXED)
    content = findings_json(judgement, remarks(judgement))
    assert (content["verdict"], content["limit"], content["lower_bound"]) == (
        "not_saturated",
        "none_found",
        True,
    )
    text = content["findings"][0]["text"]
    assert text.startswith(
        "Not saturated: 800 output tokens/s (80 requests/s) at 8 connections is a lower bound"
    )
    assert "raise --max" in text


@pytest.mark.parametrize(
    ("utils", "rates", "text"),
    [
        (
            (0.6, 0.99, 0.99, 0.99),
            (100.0, 200.0, 380.0, 420.0),
            "GPU utilisation was 99% from 2 connections on, yet throughput still grew 2.1x after it",
        ),
        (
            (0.6, 0.8, 0.99, 0.99),
            (100.0, 200.0, 400.0, 400.0),
            "GPU utilisation was 99% from 4 connections on, and throughput did not grow after it",
        ),
        (
            (0.3, 0.4, 0.5, 0.55),
            (100.0, 200.0, 300.0, 400.0),
            "GPU utilisation was 55% where throughput was highest",
        ),
    ],
    ids=["busy but growing", "busy and flat", "never busy"],
)
def test_gpu_utilisation_is_held_against_throughput(
    utils: Sequence[float], rates: Sequence[float], text: str
) -> None:
    """The sentence follows the numbers: growth after 99 %, none after it, or no 99 % at all; SM activity stands beside it."""
    views = [server(gpu=gpu(util)) for util in utils]
    (finding,) = found(judge(rising(views, rates)), "gpu_utilisation")
    assert finding.text.startswith(text)
    assert "SMs were active 31% of the time" in finding.text


def gpu(util: float) -> GpuView:
    """Return a GPU's view with a third of its SMs active."""
    return GpuView(
        gpus=1,
        util_mean=util,
        sm_active_mean=0.31,
        dram_active_mean=None,
        tensor_active_mean=None,
        power_mean_w=None,
        memory_used_mean_mib=None,
    )


def test_client_is_accused_or_acquitted() -> None:
    """Limited levels are an error; a proof is told as such; neither is a warning."""
    assert found(judge([case(1, 100.0, client=LIMITED)]), "client_limited")[0].severity == "error"
    assert found(judge([case(1, 100.0)]), "client_proof")[0].severity == "good"
    assert found(judge([case(1, 100.0, client=UNPROVEN)]), "client_proof")[0].severity == "warning"
    content = findings_json(judge([case(1, 100.0, client=LIMITED)]), [])
    assert (content["verdict"], content["limit"], content["client"]["limited"]) == (
        "client_limited",
        "client",
        True,
    )


def test_disagreeing_verification_makes_the_client_the_limit() -> None:
    """More with twice the clients overrules a saturated peak."""
    verification = Verification(agrees=False, ratio=1.3, text="twice the clients get more")
    judgement = judge(search(), stop=PASSED, verification=verification)
    assert (str(judgement.verdict), str(judgement.limit)) == ("client_limited", "client")
    agreeing = Verification(agrees=True, ratio=1.0, text="twice the clients change nothing")
    judgement = judge(search(), stop=PASSED, verification=agreeing)
    assert str(judgement.verdict) == "saturated"
    assert found(judgement, "verify_client")[0].severity == "good"


@pytest.mark.parametrize(
    ("ratios", "severity", "word"),
    [
        ((0.0, 0.005), "info", "less than 1 %"),
        ((0.5, 0.52), "info", "alike at all levels"),
        ((0.2, 0.6), "warning", "part of the difference"),
    ],
)
def test_prefix_cache_finding(ratios: Sequence[float], severity: str, word: str) -> None:
    """A hit ratio that changes between levels bends the curve; an even one does not."""
    levels = rising([server(prefix_hit_ratio=ratio) for ratio in ratios], [100.0, 200.0])
    (finding,) = found(judge(levels), "prefix_cache")
    assert finding.severity == severity
    assert word in finding.text


def test_other_findings_are_made_from_their_numbers() -> None:
    """Each oddity of a level gives its finding, and a clean run gives none of them."""
    odd = [
        case(
            8,
            100.0,
            server(preemptions=5.0, imbalance=2.5),
            level=0,
            requests_failed=10,
            ttft_n=6,
            bundled_ratio=0.2,
            completion_tokens_mean=50.0,
            reconciled=False,
        ),
        case(16, 100.0, level=1, valid=False, invalid_reason="the window is 2 s long"),
        case(32, 100.0, level=2, stability=DRIFTING),
    ]
    kinds = {finding.kind: finding for finding in remarks(judge(odd), output_tokens=128.0)}
    assert kinds["preemptions"].text.startswith("From 8 connections on")
    assert "2.5 times its fair share" in kinds["uneven_servers"].text
    assert kinds["failures"].text == "10 of 3,010 requests failed, at 8 connections."
    assert "n = 6" in kinds["few_samples"].text
    assert "20%" in kinds["bundled"].text
    assert "50 of 128 tokens" in kinds["short_answers"].text
    assert kinds["invalid_level"].text == "Not judged at 16 connections: the window is 2 s long."
    assert "thirds differ" in kinds["drift"].text
    assert kinds["not_reconciled"].severity == "warning"
    clean = {finding.kind for finding in remarks(judge(search(), stop=PASSED), output_tokens=128.0)}
    assert clean == {"ceiling", "limit", "client_proof"}


@pytest.mark.parametrize(
    ("again", "severity", "text"),
    [
        ({}, "info", "Not judged at 16 connections: too short. Another reading there counts."),
        (
            {"valid": False, "invalid_reason": "too short"},
            "warning",
            "Not judged at 16 connections: too short.",
        ),
    ],
    ids=["made up for", "not"],
)
def test_a_level_that_was_made_up_for_is_no_warning(again: dict[str, Any], severity: str, text: str) -> None:
    """A first reading that was too short takes nothing away where the second one counts."""
    short = case(16, None, level=1, valid=False, invalid_reason="too short")
    levels = [
        case(8, 100.0, level=0),
        short,
        case(16, 200.0 if not again else None, level=2, repeat=1, **again),
    ]
    (finding,) = [f for f in remarks(judge(levels)) if f.kind == "invalid_level"]
    assert (finding.severity, finding.text) == (severity, text)


def test_mixed_targets_are_an_error() -> None:
    """Metrics through a balancer are named with the remedy."""
    view = server(
        continuity=Continuity.MIXED,
        running_mean=None,
        notes=("several servers: give each with --metrics-url",),
    )
    (finding,) = found(judge([case(8, 100.0, view)]), "mixed_targets")
    assert finding.severity == "error"
    assert "--metrics-url" in finding.text


def test_run_without_any_figure_still_reports() -> None:
    """All requests failed: no peak, verdict unknown, the reason in words, no exception."""
    judgement = judge(
        [case(1, None, requests_ok=0, requests_failed=10, valid=False, invalid_reason="all requests failed")],
        stop=Stop(reason="unusable", text="10 of 10 requests failed"),
    )
    content = findings_json(judgement, remarks(judgement))
    assert (content["peak"], content["knee"], content["verdict"]) == (None, None, "unknown")
    assert content["findings"][0]["text"] == "There is no figure: 10 of 10 requests failed."
    assert "failures" in {finding["kind"] for finding in content["findings"]}


def test_decline_and_knee_are_told() -> None:
    """Half at 16 connections is told with the peak's connections; the knee with its waiting time."""
    levels = search()
    levels[4] = case(16, 200.0, full(4), level=4)
    judgement = judge([*levels, case(4, 400.0, full(4), level=20, repeat=4)], stop=PASSED)
    (finding,) = found(judgement, "decline")
    assert "at 16 throughput is 50% of the peak's" in finding.text
    knee = [case(4, 98.0, full(4), ttft_p50_s=0.1), case(8, 100.0, full(4), ttft_p50_s=0.2)]
    (finding,) = found(judge(knee), "knee")
    assert finding.text == (
        "4 connections already give 98% of the peak, with less waiting: "
        "time to first token 100 ms there, 200 ms at the peak."
    )
