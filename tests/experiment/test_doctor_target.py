"""The doctor on targets and on the load: every line in a state in which it is well, and one in which it is not."""

from __future__ import annotations

from typing import Any

import pytest

from distbench.errors import FleetError
from distbench.experiment.doctor.check import (
    Check,
    Group,
    Status,
    closing_sentence,
    exit_code,
    fail,
    ok,
    warn,
)
from distbench.experiment.doctor.self_test import (
    SelfTest,
    check_clients,
    check_strength,
    clients_needed,
)
from distbench.experiment.doctor.streaming import StreamReading, check_proxy, check_stream, lumps
from distbench.experiment.doctor.target_checks import (
    Usability,
    check_gpus,
    check_metrics,
    check_prompt_lengths,
    check_same_model,
    check_usable,
)
from distbench.experiment.target import TargetFacts
from distbench.telemetry.exposition import parse_exposition
from distbench.telemetry.target import Scrape
from tests.experiment.doctor_readings import stream

EVEN = [40.0 + 20.0 * n for n in range(32)]  # TTFT 40 ms, then a token each 20 ms
LUMP = [660.0 + 0.01 * n for n in range(32)]
FOUR_LUMPS = [100.0 * (1 + n // 8) + 0.01 * n for n in range(32)]


@pytest.mark.parametrize(
    ("reading", "status", "text"),
    [
        (stream(EVEN), "ok", "32 tokens came in 32 parts over 660 ms"),
        (stream([2000 + ms for ms in EVEN]), "ok", "as they were made"),
        (stream(EVEN[:16], tokens=32), "ok", "as they were made"),
        (stream(LUMP), "warn", "32 chunks came in one lump, the last after 660 ms: something buffers"),
        (stream(FOUR_LUMPS), "warn", "32 chunks came in 4 lumps"),
        (stream([660.0], tokens=32), "warn", "all 32 tokens came in a single event after 660 ms"),
        (stream([330.0, 660.0], tokens=32), "warn", "2 events, about 16 at a time"),
        (stream(EVEN, content_encoding="gzip"), "warn", "compressed (gzip)"),
        (stream([20 + 0.01 * n for n in range(32)]), "ok", "too fast to tell"),
        (stream([20.0]), "ok", "too few"),
        (stream([]), "warn", "no token came"),
        (
            StreamReading(headers={}, arrivals_ns=(), tokens=None, e2e_s=None, error="reset: by the server"),
            "warn",
            "failed: reset: by the server",
        ),
    ],
    ids=[
        "even",
        "slow-prefill",
        "two-tokens-a-chunk",
        "one-lump",
        "four-lumps",
        "one-event",
        "two-events",
        "gzip",
        "fast",
        "one-token",
        "nothing",
        "failed",
    ],
)
def test_the_line_about_the_stream(reading: StreamReading, status: str, text: str) -> None:
    """Lumps, single events and compression are told; a long prefill or two tokens a chunk are no buffer."""
    line = check_stream(reading)
    assert line.status == status
    assert text in line.text
    assert (line.advice is None) == (status == "ok")


def test_lumps_are_what_no_server_could_have_made_apart() -> None:
    """Gaps of 0.3 ms and more part lumps."""
    assert [lumps(each) for each in ((), (5,), (0, 299_999, 599_999), (0, 299_998, 599_996))] == [0, 1, 2, 1]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"server": "uvicorn"}, "ok"),
        ({"x-accel-buffering": "no"}, "ok"),
        ({"via": "1.1 varnish"}, "warn"),
        ({"x-accel-buffering": "yes"}, "warn"),
        ({"server": "nginx/1.24"}, "warn"),
        ({"cf-ray": "8a"}, "warn"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_the_line_about_proxies(headers: dict[str, str], status: str) -> None:
    """What a proxy leaves in the headers is shown as it stands."""
    line = check_proxy(headers)
    assert line.status == status
    assert status == "ok" or next(iter(headers.values())) in line.text


def facts(**changes: Any) -> TargetFacts:
    """Return what the preflight says of a good target, with these changes."""
    good: dict[str, Any] = {
        "model": "m",
        "max_model_len": 4096,
        "usage": True,
        "ignore_eos": True,
        "version": "1.0",
        "tokenizes": True,
        "notes": (),
    }
    return TargetFacts(**{**good, **changes})


def test_the_line_about_usability() -> None:
    """The preflight's refusal is a failure in its own words, its notes are a warning."""
    assert (
        check_usable(Usability(facts=facts(), refusal=None)).text
        == "model m, context 4,096 tokens, version 1.0"
    )
    noted = check_usable(Usability(facts=facts(notes=("the server refuses ignore_eos",)), refusal=None))
    assert (noted.status, "refuses ignore_eos" in noted.text) == (Status.WARN, True)
    refused = check_usable(Usability(facts=None, refusal="http://t/v1/models: answered 401; give a key"))
    assert (refused.status, refused.text, refused.advice) == (
        Status.FAIL,
        "http://t/v1/models: answered 401",
        "give a key",
    )


def test_the_line_about_prompt_lengths() -> None:
    """Exact by the server's /tokenize or a local tokenizer, else approximate."""
    assert check_prompt_lengths(facts(), None).status is Status.OK
    assert check_prompt_lengths(facts(tokenizes=False), "t.json").status is Status.OK
    assert check_prompt_lengths(facts(tokenizes=False), None).status is Status.WARN


def test_several_targets_must_serve_one_model() -> None:
    """No question for one target; different models fail, with both names."""

    def usable(model: str) -> Usability:
        return Usability(facts=facts(model=model), refusal=None)

    assert check_same_model({"a": usable("m")}) is None
    assert check_same_model({"a": usable("m"), "b": Usability(facts=None, refusal="x")}) is None
    same = check_same_model({"a": usable("m"), "b": usable("m")})
    other = check_same_model({"a": usable("m"), "b": usable("n")})
    assert same is not None
    assert same.status is Status.OK
    assert other is not None
    assert (other.status, "a m, b n" in other.text) == (Status.FAIL, True)


VLLM = """vllm:num_requests_running{engine="0"} 1
vllm:num_requests_waiting{engine="0"} 0
vllm:kv_cache_usage_perc{engine="0"} 0.1
vllm:generation_tokens_total{engine="0"} 7
"""
SGLANG = VLLM.replace("vllm:num_requests_running", "sglang:num_running_reqs").replace(
    "vllm:num_requests_waiting", "sglang:num_queue_reqs"
)
SGLANG = SGLANG.replace("vllm:kv_cache_usage_perc", "sglang:token_usage").replace("vllm:", "sglang:")
TGI = "tgi_batch_current_size 1\ntgi_queue_size 0\ntgi_request_generated_tokens_sum 7\ntgi_request_generated_tokens_count 1\n"
DCGM = 'DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="G0"} 99\nDCGM_FI_DEV_GPU_UTIL{gpu="1",UUID="G1"} 98\n'


def scraped(*texts: str) -> list[Scrape]:
    """Return scrapes that brought these texts; one that begins with "!" is a problem."""
    return [
        Scrape(time_ns=0, exposition=None, problem=text[1:])
        if text.startswith("!")
        else Scrape(time_ns=0, exposition=parse_exposition(text), problem=None)
        for text in texts
    ]


@pytest.mark.parametrize(
    ("texts", "status", "text"),
    [
        ([VLLM] * 3, "ok", "vLLM's names"),
        ([SGLANG] * 3, "ok", "SGLang's names"),
        ([TGI] * 3, "warn", "TGI's names, without KV-cache use"),
        (["!http://t: /metrics answered HTTP 404"], "warn", "answered HTTP 404"),
        ([DCGM] * 3, "warn", "of no server that is known"),
        (
            [VLLM + f"process_start_time_seconds {start}\n" for start in (100, 200, 100)],
            "warn",
            "2 servers answer in turn",
        ),
        ([VLLM + "process_start_time_seconds 100\n"] * 3, "ok", "vLLM's names"),
    ],
    ids=["vllm", "sglang", "tgi", "404", "unknown", "balancer", "one-server"],
)
def test_the_line_about_server_metrics(texts: list[str], status: str, text: str) -> None:
    """Whose names they bear is said; what is missing, unknown or of several servers is a warning."""
    line = check_metrics(scraped(*texts))
    assert line.status == status
    assert text in line.text


@pytest.mark.parametrize(
    ("texts", "status", "text"),
    [
        ([DCGM + 'DCGM_FI_PROF_SM_ACTIVE{gpu="0",UUID="G0"} 0.4\n'], "ok", "2 GPUs, with SM activity"),
        ([DCGM], "warn", "2 GPUs, without SM activity"),
        ([VLLM], "warn", "no GPU figure"),
        (["!no answer from /metrics in time"], "warn", "no answer"),
    ],
    ids=["all", "utilisation-only", "no-gpu", "silent"],
)
def test_the_line_about_gpus(texts: list[str], status: str, text: str) -> None:
    """Utilisation alone is a warning: it tells little."""
    line = check_gpus(scraped(*texts))
    assert line.status == status
    assert text in line.text


def test_the_line_about_one_client() -> None:
    """50,000 tokens in 2 s of CPU are 25,000 a second; failed requests and a test that did not run are told."""
    good = check_strength(SelfTest(tokens=50_000, cpu_s=2.0, wall_s=5.0, failed=0))
    assert (good.status, good.values["tokens_per_core_s"]) == (Status.OK, 25_000.0)
    assert "25,000 tokens/s" in good.text
    assert "estimate" in good.text
    assert check_strength(SelfTest(tokens=10, cpu_s=1.0, wall_s=5.0, failed=3)).status is Status.WARN
    assert check_strength(SelfTest(tokens=0, cpu_s=0.0, wall_s=5.0, failed=0)).status is Status.WARN
    broken = check_strength(FleetError("the simulated server did not start"))
    assert (broken.status, "did not start" in broken.text) == (Status.WARN, True)


def test_clients_are_half_busy_at_most() -> None:
    """At 20,000 tokens/s a CPU one client reads 10,000: 35,000 need four."""
    assert [clients_needed(20_000.0, expect) for expect in (1.0, 10_000.0, 10_001.0, 35_000.0)] == [
        1,
        1,
        2,
        4,
    ]


@pytest.mark.parametrize(
    ("rate", "connections", "expect", "places", "status", "text"),
    [
        (
            20_000.0,
            1024,
            None,
            7,
            "ok",
            "a run starts 4 for 1,024 connections, good for about 40,000 tokens/s",
        ),
        (20_000.0, 1024, 35_000.0, 7, "ok", "4 needed for 35,000 tokens/s (estimate)"),
        (20_000.0, 256, 35_000.0, 7, "warn", "4 needed for 35,000 tokens/s (estimate), but a run starts 1"),
        (20_000.0, 1024, 200_000.0, 7, "warn", "20 needed for 200,000 tokens/s (estimate), room for 7"),
        (None, 1024, 35_000.0, 7, "ok", "was not measured"),
    ],
    ids=["connections", "enough", "more-than-default", "no-room", "not-measured"],
)
def test_the_line_about_clients(
    rate: float | None, connections: int, expect: float | None, places: int, status: str, text: str
) -> None:
    """Needed, started by default and possible are compared; the option or the hosts that are missing are named."""
    line = check_clients(rate, connections=connections, expect_tokens_per_s=expect, places=places)
    assert line.status == status
    assert text in line.text
    assert status == "ok" or "--clients 4" in str(line.advice) or "add hosts" in str(line.advice)


GOOD, ODD, BAD = ok("a", "fine"), warn("b", "odd", "look"), fail("c", "bad", "mend")


@pytest.mark.parametrize(
    ("groups", "code", "sentence"),
    [
        ({Group.MACHINE: [GOOD], Group.TARGET: [GOOD]}, 0, "Ready: nothing stands against a run."),
        ({Group.MACHINE: [GOOD]}, 0, "No target was given"),
        ({Group.MACHINE: [ODD, GOOD], Group.TARGET: [GOOD]}, 0, "Ready, but b is worth a look"),
        ({Group.MACHINE: [BAD], Group.TARGET: [ODD]}, 1, "Not ready: c must be put right"),
        ({Group.CLUSTER: [BAD]}, 1, "Not ready"),
        ({Group.MACHINE: [BAD], Group.TARGET: [BAD]}, 4, "Not ready"),
    ],
    ids=["good", "no-target", "warning", "machine", "cluster", "target"],
)
def test_exit_code_and_closing_sentence(groups: dict[Group, list[Check]], code: int, sentence: str) -> None:
    """Warnings are 0, anything else that fails is 1, a target that cannot be used is 4 whatever else there is."""
    assert exit_code(groups) == code
    assert sentence in closing_sentence(groups)
