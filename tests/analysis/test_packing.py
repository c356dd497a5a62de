"""Packings side by side: each judged by itself, ranked by user messages, and explained by what the numbers say, either way."""

import json
import math
from typing import Any

import pytest

from distbench.analysis.case import LevelCase
from distbench.analysis.clamps import clamp_columns
from distbench.analysis.findings import Finding, findings_json
from distbench.analysis.packing import Packings, compare_packings
from distbench.analysis.remarks_packing import packing_remarks
from distbench.analysis.saturation import Verdict
from distbench.analysis.server_view import ServerView
from tests.analysis.judging import DRIFTING, case, full, server
from tests.analysis.requests_of import request, table

# A real vLLM with a small KV cache: 93 shared tokens, 70 a message, 40 to answer. Users, connections, messages/s, hits, preemptions,
# mean KV use, running, prompt and output tokens of a request.
SEEN = (
    (1, 64, 103.0, 0.519, 36, 0.66, 63, 185, 40),
    (2, 64, 111.0, 0.358, 74, 0.72, 36, 253, 80),
    (2, 32, 118.0, 0.357, 6, 0.79, 32, 276, 80),
    (4, 64, 86.0, 0.221, 50, 0.86, 21, 418, 160),
    (4, 16, 90.0, 0.222, 3, 0.74, 16, 413, 160),
    (8, 64, 72.0, 0.125, 21, 0.88, 11, 797, 227),
)


def shape(
    users: int,
    connections: int,
    rate: float,
    hits: float = 0.5,
    preemptions: float = 0.0,
    kv: float = 0.5,
    running: float = 8.0,
    prompt: float = 100.0,
    output: float = 40.0,
    **more: Any,
) -> LevelCase:
    """Return a level at which requests waited all the time, unless told otherwise."""
    view = more.pop("view", full(running, kv_usage_mean=kv, preemptions=preemptions))
    known: dict[str, Any] = {
        "level": more.pop("level", 1000 * users + connections),
        "users_per_request": users,
        "user_message_rate": rate,
        "request_rate": rate / users,
        "prefix_hit_ratio": hits,
        "kv_usage_mean": kv,
        "preemptions": preemptions,
        "running_mean": running,
        "prompt_tokens_mean": prompt,
        "completion_tokens_mean": output,
        "total_token_rate": rate / users * (prompt + output),
        "requests_clamped": 0,
        "requests_overflowed": 0,
        "answered_ratio": 1.0,
    }
    return case(connections, rate / users * output, view, **(known | more))


def roomy(connections: int) -> ServerView:
    """Return a server that runs all that comes."""
    return server(running_mean=float(connections), running_max=float(connections))


def seen(*entries: tuple[Any, ...]) -> Packings:
    """Return the comparison of some measured shapes."""
    return compare_packings([shape(*entry) for entry in entries])


def told(packings: Packings, kind: str) -> list[Finding]:
    """Return the findings of one kind."""
    return [finding for finding in packing_remarks(packings) if finding.kind == kind]


def test_the_shape_with_most_user_messages_is_best() -> None:
    """118 of 2 messages at 32 connections beat 111 at 64 and 103 unpacked; each packing is represented by its best shape."""
    packings = seen(*SEEN)
    assert [(s.users_per_request, s.connections) for s in packings.ranking] == [
        (2, 32),
        (2, 64),
        (1, 64),
        (4, 16),
        (4, 64),
        (8, 64),
    ]
    assert [(s.users_per_request, s.connections) for s in packings.champions] == [
        (1, 64),
        (2, 32),
        (4, 16),
        (8, 64),
    ]
    (headline,) = told(packings, "packing")
    assert headline.severity == "good"
    assert headline.text == (
        "Packing pays here: 2 user messages per request gives most, 118 user messages/s at 32 connections; "
        "1 per request gives 13% less (103/s), 4 per request give 24% less (90/s), 8 per request give 39% less (72/s)."
    )
    assert headline.evidence["ratio_to_unpacked"] == pytest.approx(118 / 103)


def test_it_says_the_opposite_where_the_numbers_do() -> None:
    """Without the packing of two, nothing beats one message per request."""
    (headline,) = told(seen(SEEN[0], *SEEN[3:]), "packing")
    assert headline.text == (
        "Packing does not pay here: one user message per request gives most, 103 user messages/s at 64 connections; "
        "4 per request give 13% less (90/s), 8 per request give 30% less (72/s)."
    )


def test_reasons_are_the_servers_numbers() -> None:
    """Four in a request against one: 185 x 0.481 = 89 tokens read per message, 413 x 0.778 / 4 = 80.3."""
    (reason,) = [f for f in told(seen(*SEEN), "packing_shape") if f.evidence["users_per_request"] == 4]
    assert reason.text == (
        "4 user messages per request against 1: 90 user messages/s to 103, 13% less (4 times the messages in a request, 0.218 times "
        "the requests/s). The prefix-cache hit rate fell from 52% to 22%; the work of reading fell, 89 to 80.3 prompt tokens computed "
        "per user message; mean KV-cache use rose from 66% to 74%; requests running together fell from 63 to 16; 3 preemptions to 36."
    )
    assert reason.evidence["ratio"] == pytest.approx(90 / 103)
    assert reason.evidence["within_noise"] is False


def test_a_cold_prefix_makes_packing_save_reading() -> None:
    """Without a prefix cache two messages in a request share the reading of the system part: 163 tokens a message, then 116.5."""
    packings = seen((1, 32, 50.0, 0.0, 0, 0.5, 8, 163, 40), (2, 32, 70.0, 0.0, 0, 0.5, 8, 233, 80))
    (reason,) = told(packings, "packing_shape")
    assert reason.evidence["reasons"] == [
        "the work of reading fell, 163 to 116 prompt tokens computed per user message"
    ]
    assert told(packings, "packing")[0].text.startswith("Packing pays here: 2 user messages per request")


def test_a_difference_within_noise_is_no_winner() -> None:
    """Single visits are not told apart within 2 x 1 % x sqrt(2) = 2.8 %: 102 against 100 is nothing, 90 is behind."""
    packings = seen((1, 32, 100.0), (2, 32, 102.0), (4, 32, 90.0))
    (headline,) = told(packings, "packing")
    assert headline.severity == "info"
    assert headline.text == (
        "2 user messages per request gave most, 102 user messages/s at 32 connections, but 1 message cannot be told from it: the "
        "difference is within noise; 4 per request give 12% less (90/s). Repeat the shapes (--repeats) to tell them apart."
    )
    within = {entry["users_per_request"]: entry["within_noise_of_best"] for entry in packings.to_json()}
    assert within == {1: True, 2: True, 4: False}


def test_repeats_widen_what_noise_can_be() -> None:
    """Visits of 100, 110 and 120: mean 110, error 10 / sqrt 3, interval 110 -+ 4.303 x 5.774; 104 is within two errors of it."""
    visits = [shape(1, 32, rate, level=i, repeat=i) for i, rate in enumerate((100.0, 110.0, 120.0))]
    packings = compare_packings([*visits, shape(2, 32, 104.0, level=9)])
    first = packings.shapes[0]
    assert first.rate == pytest.approx(110)
    assert first.error == pytest.approx(10 / math.sqrt(3))
    assert first.interval == pytest.approx((85.159, 134.841), abs=0.001)
    assert first.row["user_message_rate"] == 110.0
    assert told(packings, "packing")[0].evidence["within_noise"] == [2]


def test_each_packing_is_a_ladder_of_its_own() -> None:
    """
    Two messages at 32 connections gave less than one at 8, which says nothing: different requests. At 16 they gave less than at 32.
    """
    packings = compare_packings(
        [
            shape(1, 8, 200.0),
            shape(2, 32, 100.0),
            shape(2, 16, 50.0, view=roomy(16)),
        ]
    )
    verdicts = {(s.users_per_request, s.connections): s.verdict for s in packings.shapes}
    assert verdicts == {
        (1, 8): Verdict.SATURATED,
        (2, 16): Verdict.NOT_SATURATED,
        (2, 32): Verdict.SATURATED,
    }


def test_growth_from_fewer_connections_does_not_overrule_full_gauges() -> None:
    """N/k connections are no rung below N: the KV cache was full at 64, though 16 gave 20 % less."""
    packings = compare_packings(
        [
            shape(4, 64, 100.0, view=server(running_mean=64.0, running_max=64.0, kv_usage_max=1.0)),
            shape(4, 16, 80.0, view=roomy(16)),
        ]
    )
    assert [s.verdict for s in packings.shapes] == [Verdict.NOT_SATURATED, Verdict.SATURATED]


def test_an_unranked_shape_that_gave_more_is_not_hidden() -> None:
    """One message per request gave 120 without filling the server: the 100 of two is no victory."""
    packings = compare_packings([shape(1, 32, 120.0, view=roomy(32)), shape(2, 32, 100.0)])
    (headline,) = told(packings, "packing")
    assert headline.severity == "warning"
    assert headline.text == (
        "One user message per request gave most, 120 user messages/s at 32 connections, and the server was not even full: a lower "
        "bound. Of the packings that filled the server, 2 user messages per request gave most, 100 user messages/s at 32 connections."
    )
    (unranked,) = told(packings, "packing_unranked")
    assert unranked.severity == "warning"
    assert unranked.text.endswith(
        "It gave 120 user messages/s, more than the best: give it more connections."
    )


def test_packing_is_not_praised_without_the_unpacked_reference() -> None:
    """One message per request did not fill the server with 60: nobody knows what it can."""
    packings = compare_packings([shape(1, 32, 60.0, view=roomy(32)), shape(2, 32, 100.0)])
    assert told(packings, "packing")[0].text == (
        "Of the packings that filled the server, 2 user messages per request gave most, 100 user messages/s at 32 connections. "
        "Whether packing pays is not known: one user message per request cannot be ranked (at least 60/s)."
    )


def test_without_a_full_server_nothing_is_ranked() -> None:
    """An idle server and a drifting one: a lower bound, and what to do."""
    packings = compare_packings(
        [
            shape(1, 8, 50.0, view=roomy(8)),
            shape(2, 8, 60.0, stability=DRIFTING),
            shape(4, 8, 40.0, valid=False),
        ]
    )
    (headline,) = told(packings, "packing")
    assert headline.severity == "warning"
    assert "Raise --connections or --requests." in headline.text
    assert packings.judgement.lower_bound
    assert [entry["rank"] for entry in packings.to_json()] == [None, None, None]


def test_clamped_answers_are_named() -> None:
    """All 64 answers cut at the context, 71 % of what was asked."""
    cut = shape(8, 64, 72.0, requests_ok=64, requests_clamped=64, answered_ratio=0.71)
    (finding,) = told(compare_packings([shape(1, 64, 103.0), cut]), "packing_clamped")
    assert finding.severity == "warning"
    assert finding.text.startswith(
        "The model's context cut answers short: 64 of 64 with 8 messages per request at 64 connections."
    )
    assert finding.evidence["answered_ratio"] == 0.71


def test_refused_requests_are_named() -> None:
    """Their messages were not answered at all."""
    refused = shape(8, 64, 30.0, requests_planned=64, requests_failed=20, requests_overflowed=20)
    (finding,) = told(compare_packings([shape(1, 64, 103.0), refused]), "packing_overflow")
    assert "20 of 64 with 8 messages per request" in finding.text


def test_other_measures_that_would_mislead_are_named() -> None:
    """Requests/s, 103 to 59, and tokens/s with the prompts, 103 x 225 to 59 x 356, are for one message; the answers are for two."""
    assert [finding.text for finding in told(seen(*SEEN), "packing_misleading")] == [
        "By requests/s 1 message per request would look best (103 to 59), yet it answers 13% fewer user messages.",
        "By all tokens/s, prompts included, 1 message per request would look best (23,175 to 21,004), yet it answers 13% fewer user "
        "messages.",
    ]


def test_connections_within_a_packing_are_held_against_each_other() -> None:
    """As many connections, or as many messages in flight."""
    findings = {f.evidence["users_per_request"]: f.text for f in told(seen(*SEEN), "packing_connections")}
    assert findings == {
        2: "With 2 messages per request, 32 connections gave 118 user messages/s and 64 gave 111, with 6 and 74 preemptions.",
        4: "With 4 messages per request, 16 connections gave 90 user messages/s and 64 gave 86, with 3 and 50 preemptions.",
    }


def test_findings_json_keeps_its_form_and_gains_the_shapes() -> None:
    """The peak is the best shape's; the comparison stands beside; the packing is told first, then why."""
    packings = seen(*SEEN)
    content = findings_json(packings.judgement, packing_remarks(packings), shapes=packings.to_json())
    assert (content["verdict"], content["limit"], content["lower_bound"]) == ("saturated", "kv_memory", False)
    assert content["peak"]["connections"] == 32
    assert content["peak"]["output_token_rate"] == pytest.approx(118 / 2 * 80)
    assert content["knee"]["connections"] == 32
    assert len(content["levels"]) == 6
    kinds = [finding["kind"] for finding in content["findings"]]
    assert kinds[:4] == ["packing", "packing_shape", "packing_shape", "packing_shape"]
    best = content["shapes"][1]
    assert (best["users_per_request"], best["connections"], best["rank"], best["ranked"]) == (2, 32, 1, True)
    assert best["prompt_tokens_computed_per_message"] == pytest.approx(276 * (1 - 0.357) / 2)
    assert content["shapes"][0]["ratio_to_best"] == pytest.approx(103 / 118)
    json.dumps(content, allow_nan=False)


def test_a_clamped_answer_counts_by_what_it_holds() -> None:
    """Of 3 measured answers of 4 messages one holds 80 of 160 tokens; one request was refused: 2.5 / 3 of the messages answered."""
    known: dict[str, Any] = {
        "finish_reason": "length",
        "max_tokens": 160,
        "user_messages": 4,
        "streamed": False,
    }
    rows = table(
        [
            request(0.0, completion_tokens=160, **known),
            request(0.0, completion_tokens=80, **known),
            request(0.0, completion_tokens=60, **(known | {"finish_reason": "stop"})),
            request(
                0.0, outcome="failed", error_kind="context_overflow", **(known | {"finish_reason": None})
            ),
            request(0.0, completion_tokens=10, phase="warmup", **known),
        ]
    )
    assert clamp_columns(rows) == {
        "requests_clamped": 1,
        "requests_overflowed": 1,
        "answered_ratio": pytest.approx(2.5 / 3),
    }
    assert clamp_columns(rows.slice(3))["answered_ratio"] is None
