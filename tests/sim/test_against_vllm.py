"""The simulator against a real vLLM: the scheduler step by step, the server request by request."""

from __future__ import annotations

import json
import random
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from distbench.sim.kv_cache import KvCache
from distbench.sim.scheduler import Scheduler, SimRequest
from tests.sim.servers import ServerFactory, get, post
from tests.support.needs import REAL_VLLM
from tests.support.vllm import VllmServers

pytestmark = pytest.mark.vllm

# Each costs about two seconds, most of it for vLLM's configuration.
NUM_CASES = 16


class Fixed:
    """Answers with given tokens."""

    def __init__(self, tokens: list[int]) -> None:
        self._tokens = tokens

    def token_at(self, position: int) -> int:
        """Return the token at a position."""
        return self._tokens[position]


def make_case(generator: random.Random) -> dict[str, Any]:
    """Draw limits and a script of additions and aborts; small caches and shared prompt starts, so that much happens."""
    block_size = generator.choice([16, 32])
    context = generator.choice([8, 16]) * block_size
    max_num_seqs = generator.randint(1, 10)
    config = {
        "block_size": block_size,
        "max_model_len": context,
        "num_blocks": generator.randint(context // block_size + 1, 4 * context // block_size),
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max(generator.choice([16, 33, 64, 100, 256, 2048]), max_num_seqs),
        "prefix_caching": generator.random() < 0.8,
    }
    events: list[list[dict[str, Any]]] = []
    count = 0
    for _ in range(generator.randint(5, 60)):
        now: list[dict[str, Any]] = []
        for _ in range(generator.choice([0, 0, 1, 1, 3])):
            length = generator.randint(1, context - 2)
            shared = generator.randint(0, length)
            output = generator.randint(1, min(context - length, generator.choice([5, 40, 200])))
            own = [generator.randint(1000, 8000) for _ in range(length - shared)]
            now.append(
                {
                    "kind": "add",
                    "name": str(count),
                    "prompt": [100 + generator.randint(0, 2)] * shared + own,
                    "answer": [generator.randint(200, 210) for _ in range(output)],
                }
            )
            count += 1
        if count and generator.random() < 0.1:
            now.append({"kind": "abort", "name": str(generator.randrange(count))})
        events.append(now)
    return {"config": config, "events": events}


def replay(case: dict[str, Any]) -> dict[str, Any]:
    """Do on the simulator's scheduler what vllm_replay.py does on the real one."""
    config = case["config"]
    cache = KvCache(config["num_blocks"], config["block_size"], prefix_caching=config["prefix_caching"])
    scheduler = Scheduler(
        cache, max_num_seqs=config["max_num_seqs"], max_num_batched_tokens=config["max_num_batched_tokens"]
    )
    requests: dict[str, SimRequest] = {}
    steps = []
    pending = list(case["events"])
    while pending or scheduler.num_unfinished:
        for event in pending.pop(0) if pending else ():
            if event["kind"] == "abort":
                scheduler.abort(requests[event["name"]])
                continue
            requests[event["name"]] = SimRequest(
                request_id=event["name"],
                tokens=list(event["prompt"]),
                num_prompt_tokens=len(event["prompt"]),
                num_output_target=len(event["answer"]),
                source=Fixed(event["answer"]),
            )
            scheduler.add(requests[event["name"]])
        step = scheduler.schedule()
        scheduler.complete(step)
        steps.append(
            {
                "scheduled": {item.request_id: num_tokens for item, num_tokens in step.scheduled},
                "running": [item.request_id for item in scheduler.running],
                "waiting": [item.request_id for item in scheduler.waiting],
                "free": list(cache.free_order()),
            }
        )
    counters = scheduler.counters
    return {
        "steps": steps,
        "counters": {
            "queried": counters.prefix_queried_tokens,
            "hit": counters.prefix_hit_tokens,
            "preempted_queried": counters.preempted_queried_tokens,
            "preempted_hit": counters.preempted_hit_tokens,
        },
        "preemptions": {name: item.num_preemptions for name, item in requests.items()},
    }


def vllm_folder() -> Path:
    """Return where the real vLLM is installed."""
    told = subprocess.run([REAL_VLLM, "env"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"^folder\s+(\S.*)$", told, re.MULTILINE)
    assert found is not None
    return Path(found.group(1))


def test_scheduler_does_step_by_step_what_the_real_one_does(tmp_path: Path) -> None:
    """
    Same limits, arrivals, aborts and tokens: every step schedules the same tokens, leaves the same queues and the same order of
    free blocks, and counts the same hits and preemptions.
    """
    generator = random.Random(20261129)
    cases = [make_case(generator) for _ in range(NUM_CASES)]
    (tmp_path / "cases.json").write_text(json.dumps(cases))
    folder = vllm_folder()
    script = Path(__file__).with_name("vllm_replay.py")
    command = [
        folder / "bin" / "python",
        script,
        folder / "tiny-model",
        tmp_path / "cases.json",
        tmp_path / "result.json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    real = json.loads((tmp_path / "result.json").read_text())
    for case, expected in zip(cases, real, strict=True):
        actual = replay(case)
        for number, (ours, theirs) in enumerate(zip(actual["steps"], expected["steps"], strict=False)):
            assert ours == theirs, f"step {number} of {case['config']}"
        assert actual == expected
    # The cases are worth something only if they preempt and hit.
    assert sum(sum(result["preemptions"].values()) for result in real) > 20
    assert sum(result["counters"]["hit"] for result in real) > 4_000


def test_sequential_prompts_hit_the_same_tokens(
    start_server: ServerFactory, vllm_servers: VllmServers
) -> None:
    """The same token-id prompts, one after the other, on a cache that has to evict: cached_tokens agree request by request."""
    real = vllm_servers.url("--block-size", "32", "--num-gpu-blocks-override", "64", "--max-num-seqs", "8")
    post(
        f"{real}/reset_prefix_cache"
    )  # exists in development mode only; else the first prompts are new to the server anyhow
    sim = start_server(model="tiny", block_size=32, num_blocks=64, max_model_len=1024, max_num_seqs=8).url
    generator = random.Random(7)
    groups = [[generator.randrange(300, 8000) for _ in range(400)] for _ in range(6)]
    for _ in range(40):
        shared = generator.choice(groups)
        prompt = shared[: generator.randrange(1, 400)] + [
            generator.randrange(300, 8000) for _ in range(generator.randrange(1, 200))
        ]
        body = {
            "model": "tiny",
            "prompt": prompt,
            "max_tokens": generator.randrange(1, 20),
            "ignore_eos": True,
            "seed": 1,
        }
        usages = [post(f"{url}/v1/completions", json=body, timeout=60).json()["usage"] for url in (real, sim)]
        assert [usage["prompt_tokens"] for usage in usages] == [len(prompt)] * 2
        cached = [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages]
        assert cached[0] == cached[1]


def test_metrics_have_the_names_types_and_labels_of_the_real_ones(
    start_server: ServerFactory, vllm_servers: VllmServers
) -> None:
    """Every vllm: series of the simulator is one of the real server, with the same labels; none that is read is missing."""

    def series(text: str) -> dict[str, tuple[str, ...]]:
        names = {}
        for line in text.splitlines():
            if line.startswith("vllm:") and not line.startswith("vllm:cache_config_info"):
                name, _, rest = line.partition("{")
                names[name] = tuple(sorted(re.findall(r'(\w+)="', rest)))
        return names

    def kinds(text: str) -> dict[str, str]:
        return dict(re.findall(r"^# TYPE (vllm:\S+) (\w+)$", text, re.MULTILINE))

    real = get(f"{vllm_servers.url()}/metrics").text
    sim = get(f"{start_server().url}/metrics").text
    assert series(sim) == series(real)
    assert kinds(sim) == kinds(real)
