"""distbench against a real vLLM on the CPU: what it counts, what it refuses, and what distbench makes of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from distbench.core.plan_io import build_plan
from distbench.errors import TargetError
from distbench.experiment.commands import run_plan
from distbench.experiment.result import RunResult
from distbench.store.reader import open_run
from tests.support.vllm import VllmServers

pytestmark = pytest.mark.vllm


def distbench(command: str, url: str, output: Path, **flags: Any) -> RunResult:
    """Carry out a plan without Ray."""
    settings = {"urls": [url], "ray-address": "none", "output": str(output)}
    settings |= {name.replace("_", "-"): value for name, value in flags.items()}
    return run_plan(build_plan(command, {}, settings))


def counters(url: str, *names: str) -> dict[str, float]:
    """Return the sums of some of the server's counters over its engines."""
    text = httpx.get(f"{url}/metrics").text
    return {
        name: sum(map(float, re.findall(rf"^vllm:{name}\{{[^}}]*\}} (\S+)$", text, re.MULTILINE)))
        for name in names
    }


def test_rows_tokens_and_cache_hits_equal_the_servers_counters(
    vllm_servers: VllmServers, tmp_path: Path
) -> None:
    """
    Every request is answered; prompt, output and cached tokens of the rows equal what vLLM counted.

    A second run of the same plan finds its prompts in the prefix cache: cached_tokens is there, per request, and adds up to vLLM's own.
    """
    url = vllm_servers.url()
    names = ("generation_tokens_total", "prompt_tokens_total", "prompt_tokens_cached_total")
    load = {"connections": "8", "requests": 60, "output_tokens": 12, "system_tokens": 70, "user_tokens": 40}
    seen = []
    for run in ("first", "second"):
        before = counters(url, *names)
        result = distbench("run", url, tmp_path / run, **load)
        after = counters(url, *names)
        rows = open_run(tmp_path / run).requests().to_pandas()
        assert set(rows.outcome) == {"ok"}
        assert set(rows.token_source) == {"usage"}
        assert len(rows) == 60 + 8
        # The probe of the preflight is one token, and no row.
        assert rows.completion_tokens.sum() == 12 * 68 == after[names[0]] - before[names[0]] - 1
        cached = rows.cached_tokens.fillna(0).sum()
        assert cached <= after[names[2]] - before[names[2]] <= cached + 64
        assert result.rows[0]["reconciled"] is True
        seen.append((rows.sort_values("request_id").prompt_id.tolist(), rows.cached_tokens.fillna(0).min()))
    assert seen[0][0] == seen[1][0]
    assert seen[1][1] >= 64  # every prompt of the second run had been there, two blocks of 32 at the least


def test_prompts_have_exactly_the_asked_tokens(vllm_servers: VllmServers, tmp_path: Path) -> None:
    """The vocabulary is calibrated by the server's /tokenize: what was expected is what vLLM counted, in every row."""
    result = distbench(
        "run", vllm_servers.url(), tmp_path / "r", connections="4", requests=20, output_tokens=4
    )
    rows = open_run(tmp_path / "r").requests().to_pandas()
    assert result.exit_code == 0
    assert (rows.prompt_tokens == rows.expected_prompt_tokens).all()


def test_what_the_server_refuses_is_classified(vllm_servers: VllmServers, tmp_path: Path) -> None:
    """More output tokens than the context holds is context_overflow in every row; an unknown model is refused beforehand."""
    url = vllm_servers.url()
    result = distbench(
        "run", url, tmp_path / "r", connections="2", requests=6, warmup=0, extra_body='{"max_tokens": 100000}'
    )
    assert result.exit_code == 1
    assert {kind: count for kind, (count, _) in result.errors.items()} == {"context_overflow": 6}
    with pytest.raises(TargetError, match="no-such-model"):
        distbench("run", url, tmp_path / "s", model="no-such-model")
    with pytest.raises(TargetError, match="does not exist"):
        distbench("run", url, tmp_path / "t", extra_body='{"model": "nope"}')


def test_a_full_queue_is_counted_as_failures(vllm_servers: VllmServers, tmp_path: Path) -> None:
    """
    60 connections against 4 sequences and a queue of 24: what vLLM turns away, by 503 or inside a 200 stream, is failed, not ok.

    The answered ones have all their tokens; nothing is counted twice.
    """
    url = vllm_servers.url(
        "--max-num-seqs", "4", "--max-num-batched-tokens", "256", "--max-num-queued-reqs", "24"
    )
    result = distbench(
        "run",
        url,
        tmp_path / "r",
        connections="60",
        requests=120,
        warmup=0,
        output_tokens=16,
        system_tokens=0,
        user_tokens=16,
    )
    row = result.rows[0]
    assert row["requests_ok"] + row["requests_failed"] == 120
    assert row["requests_failed"] > 0
    assert set(result.errors) <= {"stream_error", "http_5xx"}
    assert all("busy" in text for _, text in result.errors.values())
    rows = open_run(tmp_path / "r").requests().to_pandas()
    assert (rows[rows.outcome == "ok"].completion_tokens == 16).all()


def test_capacity_names_sequences(vllm_servers: VllmServers, tmp_path: Path) -> None:
    """With --max-num-seqs 16 running stands at 16, and the number of sequences is named as the limit."""
    url = vllm_servers.url("--max-num-seqs", "16")
    result = distbench(
        "capacity",
        url,
        tmp_path / "r",
        connections="8,32,64",
        requests=1_720,  # so many that a fast machine, too, needs longer for a level than the shortest that is judged
        warmup=8,
        repeats=0,
        output_tokens=32,
        system_tokens=16,
        user_tokens=16,
    )
    top = [row for row in result.rows if row["connections"] == 64]
    assert {row["running_max"] for row in top} == {16.0}
    assert result.findings["limit"] == "sequences"
    # Two shared cores cannot promise a level without drift; that the server was full they can.
    assert {row["verdict"] for row in top} <= {"saturated", "unstable"}


def test_capacity_names_kv_memory(vllm_servers: VllmServers, tmp_path: Path) -> None:
    """With 8,192 KV tokens and 64 sequences of about 64 + 120 tokens there are preemptions, and KV memory is named."""
    result = distbench(
        "capacity",
        vllm_servers.url(),
        tmp_path / "r",
        connections="64",
        requests=400,
        warmup=0,
        repeats=0,
        output_tokens=120,
        system_tokens=0,
        user_tokens=50,
    )
    top = next(row for row in result.rows if row["connections"] == 64)
    assert top["preemptions"] > 0
    assert top["kv_usage_max"] >= 0.95
    assert top["limit"] == "kv_memory"
