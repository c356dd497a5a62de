"""
Replays cases on vLLM's own scheduler; run by the interpreter of vLLM's environment, not by pytest.

    python vllm_replay.py MODEL_FOLDER CASES.json RESULT.json

No model runs: each step's tokens come from the case, so that only scheduling and block management are compared.
"""
# mypy: ignore-errors

import json
import os
import sys

os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}

import torch
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager


def make_scheduler(model, config):
    """Build a scheduler with one full-attention cache group."""
    vllm_config = EngineArgs(
        model=model,
        load_format="dummy",
        enforce_eager=True,
        max_model_len=config["max_model_len"],
        block_size=config["block_size"],
        num_gpu_blocks_override=config["num_blocks"],
        max_num_seqs=config["max_num_seqs"],
        max_num_batched_tokens=config["max_num_batched_tokens"],
        enable_prefix_caching=config["prefix_caching"],
    ).create_engine_config()
    vllm_config.cache_config.num_gpu_blocks = config["num_blocks"]
    spec = FullAttentionSpec(
        block_size=config["block_size"], num_kv_heads=1, head_size=64, dtype=torch.bfloat16
    )
    kv_cache_config = KVCacheConfig(
        num_blocks=config["num_blocks"],
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
    )
    return Scheduler(
        vllm_config=vllm_config,
        kv_cache_config=kv_cache_config,
        structured_output_manager=StructuredOutputManager(vllm_config),
        block_size=config["block_size"],
        hash_block_size=config["block_size"],
        log_stats=True,
    )


def replay(model, case):
    """Return, per step, what was scheduled and what the queues and the free blocks were after it; and the counters."""
    scheduler = make_scheduler(model, case["config"])
    hasher = None
    if case["config"]["prefix_caching"]:
        hasher = get_request_block_hasher(case["config"]["block_size"], sha256)
    requests, answers, steps = {}, {}, []
    counters = {"queried": 0, "hit": 0, "preempted_queried": 0, "preempted_hit": 0}
    pending = list(case["events"])
    while pending or scheduler.get_num_unfinished_requests():
        for event in pending.pop(0) if pending else ():
            if event["kind"] == "abort":
                scheduler.finish_requests(event["name"], RequestStatus.FINISHED_ABORTED)
                continue
            name = event["name"]
            answers[name] = event["answer"]
            requests[name] = Request(
                request_id=name,
                prompt_token_ids=event["prompt"],
                sampling_params=SamplingParams(max_tokens=len(event["answer"]), ignore_eos=True),
                pooling_params=None,
                block_hasher=hasher,
            )
            scheduler.add_request(requests[name])
        output = scheduler.schedule()
        names = list(output.num_scheduled_tokens)
        sampled = [
            [answers[name][requests[name].num_output_tokens]]
            if requests[name].num_computed_tokens >= requests[name].num_tokens
            else []
            for name in names
        ]
        result = scheduler.update_from_output(
            output,
            ModelRunnerOutput(
                req_ids=names,
                req_id_to_index={name: index for index, name in enumerate(names)},
                sampled_token_ids=sampled,
                logprobs=None,
                prompt_logprobs_dict={},
                pooler_output=[],
            ),
        )
        for part in result.values():
            if part.scheduler_stats is not None and part.scheduler_stats.prefix_cache_stats is not None:
                stats = part.scheduler_stats.prefix_cache_stats
                counters["queried"] += stats.queries
                counters["hit"] += stats.hits
                counters["preempted_queried"] += stats.preempted_queries
                counters["preempted_hit"] += stats.preempted_hits
        queue = scheduler.kv_cache_manager.block_pool.free_block_queue
        steps.append(
            {
                "scheduled": dict(output.num_scheduled_tokens),
                "running": [request.request_id for request in scheduler.running],
                "waiting": [request.request_id for request in scheduler.waiting],
                "free": [block.block_id for block in queue.get_all_free_blocks()],
            }
        )
    preemptions = {name: request.num_preemptions for name, request in requests.items()}
    return {"steps": steps, "counters": counters, "preemptions": preemptions}


def main():
    """Replay all cases of a file."""
    model, cases_path, result_path = sys.argv[1:]
    init_none_hash(sha256)
    with open(cases_path) as file:
        cases = json.load(file)
    with open(result_path, "w") as file:
        json.dump([replay(model, case) for case in cases], file)


if __name__ == "__main__":
    main()
