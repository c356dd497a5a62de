"""What a workload says of its prompts, held against what servers count: lengths by /tokenize, prefix hits by whole blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson
import pytest

from distbench.core.calibration import Calibration, calibrate
from distbench.core.levels import LevelSpec
from distbench.core.plan import TargetPlan
from distbench.core.plan_io import build_plan
from distbench.core.prompts import Prompt
from distbench.core.records import Phase
from distbench.core.summary import describe
from distbench.core.urls import endpoint_url
from distbench.core.workload import build_workload
from distbench.experiment.target import TargetClient
from distbench.experiment.tokenizing import ServerTokenizer
from distbench.sim.embedded import EmbeddedServer
from distbench.sim.settings import SimSettings
from tests.support.vllm import MODEL, VllmServers

_REQUESTS = 16
_SHAPES = (("chat", 1), ("chat", 3), ("completions", 2))


@pytest.fixture(scope="module")
def sim() -> Iterator[str]:
    """Serve the simulator to all tests of this file: their levels differ, so its cache is cold at each."""
    with EmbeddedServer(SimSettings(model=MODEL)) as server:
        yield server.url


def ask(client: TargetClient, endpoint: str, prompt: Prompt) -> Mapping[str, Any]:
    """Send a prompt, without a stream, and return the usage."""
    if prompt.token_ids is not None:
        content: dict[str, Any] = {"prompt": prompt.token_ids}
    elif endpoint == "chat":
        content = {"messages": [{"role": role, "content": text} for role, text in prompt.messages]}
    else:
        content = {"prompt": "\n\n".join(text for _, text in prompt.messages)}
    body = orjson.dumps({"model": MODEL, "max_tokens": 1, **content})
    usage: Mapping[str, Any] = client.post(endpoint_url(client.base_url, endpoint), body).json()["usage"]
    return usage


def check(
    url: str, endpoint: str, users: int, block_tokens: int, first_level: int, ids: bool = False
) -> None:
    """Send a level's prompts one by one; each has the expected length, and together they have the expected hits."""
    target = TargetPlan(urls=(url,))
    client = TargetClient(target, target.urls[0], ())
    try:
        if ids:
            calibration = Calibration.for_token_ids(8192)
        else:
            calibration = calibrate(ServerTokenizer(client, MODEL), source="/tokenize")
        assert calibration.exact
        lengths = {
            "system-tokens": 93,
            "user-tokens": "uniform:40:100",
            "output-tokens": 1,
            "seed": first_level,
        }
        plan = build_plan("run", {"urls": [url], "endpoint": endpoint, **lengths}, {})
        workload = build_workload(plan, calibration=calibration, max_model_len=1024)
        spec = LevelSpec(
            level=first_level + users, connections=1, requests=_REQUESTS, warmup=0, users_per_request=users
        )
        (expected,) = describe(workload, [spec], block_tokens=block_tokens).levels
        usages = []
        for index in range(_REQUESTS):
            prompt = workload.prompt(
                phase=Phase.MEASURED, level=spec.level, index=index, users_per_request=users
            )
            usages.append(ask(client, endpoint, prompt))
            assert usages[-1]["prompt_tokens"] == prompt.expected_prompt_tokens
        total = sum(usage["prompt_tokens"] for usage in usages)
        cached = sum((usage["prompt_tokens_details"] or {}).get("cached_tokens") or 0 for usage in usages)
        assert cached / total == pytest.approx(expected.hit_ratio)
    finally:
        client.close()


@pytest.mark.parametrize(("endpoint", "users"), _SHAPES)
def test_lengths_and_hits_are_exact_on_the_simulator(sim: str, endpoint: str, users: int) -> None:
    """Through its /tokenize; blocks of 16."""
    check(sim, endpoint, users, block_tokens=16, first_level=0)


def test_token_ids_are_exact_on_the_simulator(sim: str) -> None:
    """Without any tokenizer."""
    check(sim, "completions", 2, block_tokens=16, first_level=0, ids=True)


@pytest.mark.vllm
@pytest.mark.parametrize(("endpoint", "users"), _SHAPES)
def test_lengths_and_hits_are_exact_on_vllm(vllm_servers: VllmServers, endpoint: str, users: int) -> None:
    """Through its /tokenize; blocks of 32, as scripts/real-vllm serves it. The server is shared: levels of our own."""
    check(vllm_servers.url(), endpoint, users, block_tokens=32, first_level=7_000)


@pytest.mark.vllm
def test_token_ids_are_exact_on_vllm(vllm_servers: VllmServers) -> None:
    """Without any tokenizer."""
    check(vllm_servers.url(), "completions", 2, block_tokens=32, first_level=7_100, ids=True)
