"""The real vLLM of scripts/real-vllm is up to what the tests ask of it."""

import json
import re
import urllib.request
from typing import Any

import pytest

from tests.support.vllm import MODEL, VllmServers

_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def generated(url: str) -> float:
    """Return the server's counter of generated tokens."""
    with _DIRECT.open(f"{url}/metrics", timeout=30) as page:
        found = re.findall(r"^vllm:generation_tokens_total\{.*\} (\S+)$", page.read().decode(), re.MULTILINE)
    return sum(map(float, found))


def complete(url: str, prompt: str, max_tokens: int) -> Any:
    """Return the answer to one text completion."""
    body = {"model": MODEL, "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True}
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with _DIRECT.open(request, timeout=60) as answer:
        return json.load(answer)


@pytest.mark.vllm
def test_usage_counters_and_cache_agree(vllm_servers: VllmServers) -> None:
    """Tokens in an answer's usage are the counter's growth, and a prompt sent again is found in the prefix cache."""
    url = vllm_servers.url()
    prompt = "def main(): return 0\n" * 20

    before = generated(url)
    first, second = (complete(url, prompt, 6)["usage"] for _ in range(2))

    assert [first["completion_tokens"], second["completion_tokens"]] == [6, 6]
    assert generated(url) - before == 12
    # Whole blocks of 32 tokens are cached; the prompt has more than three.
    assert second["prompt_tokens_details"]["cached_tokens"] >= 64


@pytest.mark.vllm
def test_same_flags_share_a_server(vllm_servers: VllmServers) -> None:
    """Servers are started once for each set of flags."""
    assert vllm_servers.url() == vllm_servers.url()
