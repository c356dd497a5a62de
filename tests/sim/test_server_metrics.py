"""What /metrics tells, against what was done."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from distbench.sim.process_metrics import format_value
from tests.sim.servers import ServerFactory, chat, engine_sum, eventually, get, post, samples

LABELS = '{engine="0",model_name="tiny"}'


def run_together(url: str, prompts: list[list[int]], output: int) -> list[dict[str, int]]:
    """Send completions at once; return their usage."""

    def one(prompt: list[int]) -> dict[str, int]:
        body = {"prompt": prompt, "max_tokens": output, "ignore_eos": True}
        usage: dict[str, int] = post(f"{url}/v1/completions", json=body, timeout=30).json()["usage"]
        return usage

    with ThreadPoolExecutor(len(prompts)) as pool:
        return list(pool.map(one, prompts))


def test_text_parses_and_has_the_real_names(start_server: ServerFactory) -> None:
    """Every family that the analysis reads is there with the real type."""
    text = get(f"{start_server().url}/metrics").text
    kinds = {family.name: family.type for family in text_string_to_metric_families(text)}
    for name, kind in {
        "vllm:num_requests_running": "gauge",
        "vllm:num_requests_waiting": "gauge",
        "vllm:num_requests_waiting_by_reason": "gauge",
        "vllm:kv_cache_usage_perc": "gauge",
        "vllm:prefix_cache_queries": "counter",
        "vllm:prefix_cache_queries_created": "gauge",
        "vllm:prefix_cache_hits": "counter",
        "vllm:num_preemptions": "counter",
        "vllm:prompt_tokens": "counter",
        "vllm:prompt_tokens_cached": "counter",
        "vllm:generation_tokens": "counter",
        "vllm:request_success": "counter",
        "vllm:admission_rejections": "counter",
        "vllm:iteration_tokens_total": "histogram",
        "vllm:time_to_first_token_seconds": "histogram",
        "vllm:inter_token_latency_seconds": "histogram",
        "vllm:request_time_per_output_token_seconds": "histogram",
        "vllm:e2e_request_latency_seconds": "histogram",
        "vllm:request_queue_time_seconds": "histogram",
        "vllm:request_prefill_time_seconds": "histogram",
        "vllm:request_decode_time_seconds": "histogram",
        "vllm:request_inference_time_seconds": "histogram",
        "vllm:cache_config_info": "gauge",
        "process_start_time_seconds": "gauge",
    }.items():
        assert (name, kinds.get(name)) == (name, kind)
    assert "max_num_seqs" not in text


def test_start_time_does_not_move(start_server: ServerFactory) -> None:
    """Two scrapes tell the same start of the process: a change would read as a restart."""
    url = start_server().url
    assert samples(url)["process_start_time_seconds"] == samples(url)["process_start_time_seconds"]


def test_counters_equal_the_sum_of_usage(start_server: ServerFactory) -> None:
    """12 requests of 20 + n prompt tokens and 9 answer tokens: every sum agrees exactly."""
    url = start_server(max_num_seqs=4).url
    usages = run_together(url, [list(range(n * 50 + 20, n * 50 + 40 + n)) for n in range(12)], 9)
    told = samples(url)
    assert told[f"vllm:generation_tokens_total{LABELS}"] == sum(u["completion_tokens"] for u in usages) == 108
    assert (
        told[f"vllm:prompt_tokens_total{LABELS}"] == sum(u["prompt_tokens"] for u in usages) == 12 * 20 + 66
    )
    assert told[f"vllm:prefix_cache_queries_total{LABELS}"] == 12 * 20 + 66
    assert told['vllm:request_success_total{engine="0",finished_reason="length",model_name="tiny"}'] == 12
    assert told[f"vllm:time_to_first_token_seconds_count{LABELS}"] == 12
    assert told[f"vllm:inter_token_latency_seconds_count{LABELS}"] == 12 * 8
    assert told[f"vllm:request_generation_tokens_sum{LABELS}"] == 108
    assert told[f"vllm:e2e_request_latency_seconds_count{LABELS}"] == 12
    assert told[f"vllm:num_requests_running{LABELS}"] == 0


def test_cached_tokens_equal_hits(start_server: ServerFactory) -> None:
    """The same 64-token prompt three times: (64 - 1) // 16 = 3 blocks = 48 tokens hit twice."""
    url = start_server().url
    for _ in range(3):
        run_together(url, [list(range(100, 164))], 1)
    told = samples(url)
    assert told[f"vllm:prefix_cache_hits_total{LABELS}"] == 96
    assert told[f"vllm:prompt_tokens_cached_total{LABELS}"] == 96
    assert (
        told['vllm:prompt_tokens_by_source_total{engine="0",model_name="tiny",source="local_compute"}'] == 96
    )
    assert told[f"vllm:prompt_tokens_total{LABELS}"] == 192


def test_small_cache_preempts_and_a_big_one_does_not(start_server: ServerFactory) -> None:
    """8 requests of 16 + 60 tokens need 40 blocks of 16; 12 usable ones make preemptions, and all answers are whole."""
    prompts = [list(range(n * 100 + 20, n * 100 + 36)) for n in range(8)]
    for blocks, preempts in ((13, True), (100, False)):
        url = start_server(num_blocks=blocks, max_model_len=128, max_num_seqs=8).url
        usages = run_together(url, prompts, 60)
        assert [u["completion_tokens"] for u in usages] == [60] * 8
        assert (engine_sum(url, "num_preemptions_total") > 0) is preempts
        assert engine_sum(url, "kv_cache_usage_perc") == 0.0


def test_aborted_request_stays_in_tokens_and_out_of_success(start_server: ServerFactory) -> None:
    """A client that leaves after 3 events is aborted; its tokens and its TTFT count, its success and latency do not."""
    url = start_server().url
    with (
        httpx.Client(verify=False, trust_env=False) as client,
        client.stream(
            "POST", f"{url}/v1/chat/completions", json=chat(stream=True, max_tokens=4000)
        ) as response,
    ):
        lines = response.iter_lines()
        for _ in range(6):
            next(lines)
    assert eventually(lambda: engine_sum(url, "num_requests_running") == 0)
    told = samples(url)
    assert 2 <= told[f"vllm:generation_tokens_total{LABELS}"] < 4000
    assert told[f"vllm:time_to_first_token_seconds_count{LABELS}"] == 1
    assert told[f"vllm:e2e_request_latency_seconds_count{LABELS}"] == 0
    assert sum(value for key, value in told.items() if key.startswith("vllm:request_success_total")) == 0
    assert told[f"vllm:kv_cache_usage_perc{LABELS}"] == 0.0


def test_data_parallel_engines_share_the_load(start_server: ServerFactory) -> None:
    """Two engines, 8 requests together, one sequence each at a time: both are used, the sums are whole."""
    url = start_server(data_parallel_size=2, max_num_seqs=1).url
    run_together(url, [list(range(n * 50 + 20, n * 50 + 40)) for n in range(8)], 5)
    told = samples(url)
    per_engine = [
        told[f'vllm:generation_tokens_total{{engine="{engine}",model_name="tiny"}}'] for engine in (0, 1)
    ]
    assert sum(per_engine) == 40
    assert min(per_engine) >= 10


def test_gauges_show_running_and_waiting(start_server: ServerFactory) -> None:
    """3 slots, 7 long requests: at some scrape 3 run and 4 wait, and the reasons sum to the waiting."""
    server = start_server(max_num_seqs=3)
    threads = [
        threading.Thread(target=run_together, args=(server.url, [list(range(n * 40 + 20, n * 40 + 30))], 150))
        for n in range(7)
    ]
    for thread in threads:
        thread.start()
    seen: list[tuple[float, float, float]] = []

    def full() -> bool:
        told = samples(server.url)
        capacity = told['vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="capacity"}']
        seen.append(
            (told[f"vllm:num_requests_running{LABELS}"], told[f"vllm:num_requests_waiting{LABELS}"], capacity)
        )
        return seen[-1] == (3, 4, 4)

    assert eventually(full), seen
    for thread in threads:
        thread.join()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0.0"),
        (12, "12.0"),
        (0.25, "0.25"),
        (999_999, "999999.0"),
        (1_500_000, "1.5e+06"),
        (1795975623.75, "1.79597562375e+09"),
    ],
)
def test_values_are_written_as_prometheus_client_does(value: float, text: str) -> None:
    """Plain below a million, with an exponent from there."""
    assert format_value(value) == text
