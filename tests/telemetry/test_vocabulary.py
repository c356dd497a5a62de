"""One vocabulary over the servers' names, newest name first, units from HELP."""

import pytest

from distbench.telemetry.vocabulary import Quantity, is_recorded, prefix_unit, resolve, time_scale


@pytest.mark.parametrize(
    ("present", "chosen"),
    [
        (["vllm:gpu_cache_usage_perc"], "vllm:gpu_cache_usage_perc"),
        (["vllm:kv_cache_usage_perc"], "vllm:kv_cache_usage_perc"),
        (["vllm:gpu_cache_usage_perc", "vllm:kv_cache_usage_perc"], "vllm:kv_cache_usage_perc"),
        (["vllm:num_requests_running"], None),
    ],
    ids=["old", "new", "both", "none"],
)
def test_renamed_metric_is_found_once(present: list[str], chosen: str | None) -> None:
    """C74: the old name, the new name, or the new one of both; without any the quantity is absent."""
    assert resolve(present).get(Quantity.KV_USAGE) == chosen


def test_inter_token_latency_has_an_older_name() -> None:
    """C74: time_per_output_token is today's inter_token_latency."""
    old = ["vllm:time_per_output_token_seconds_sum", "vllm:time_per_output_token_seconds_count"]
    assert resolve(old)[Quantity.ITL] == "vllm:time_per_output_token_seconds"


def test_half_of_a_histogram_is_not_exported() -> None:
    """A mean needs both the sum and the count."""
    assert Quantity.TTFT not in resolve(["vllm:time_to_first_token_seconds_sum"])


def test_sglang_and_tgi_speak_the_same_words() -> None:
    """Other servers' names resolve to the same quantities."""
    sglang = resolve(["sglang:num_running_reqs", "sglang:num_queue_reqs", "sglang:token_usage"])
    assert sglang[Quantity.RUNNING] == "sglang:num_running_reqs"
    assert sglang[Quantity.WAITING] == "sglang:num_queue_reqs"
    tgi = resolve(["tgi_batch_current_size", "tgi_queue_size", "tgi_request_generated_tokens_sum"])
    assert tgi[Quantity.RUNNING] == "tgi_batch_current_size"
    assert tgi[Quantity.GENERATION_TOKENS] == "tgi_request_generated_tokens_sum"


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("vllm:generation_tokens_total", True),
        ("vllm:generation_tokens_created", True),
        ("vllm:num_requests_waiting_by_reason", True),
        ("DCGM_FI_DEV_GPU_UTIL", True),
        ("process_start_time_seconds", True),
        ("vllm:time_to_first_token_seconds_bucket", False),
        ("vllm:iteration_tokens_total_bucket", True),
        ("vllm:request_params_n_created", False),
        ("python_gc_objects_collected_total", False),
    ],
)
def test_recorded_series(name: str, kept: bool) -> None:
    """Everything of known servers is recorded but buckets and stamps that nobody reads."""
    assert is_recorded(name) is kept


@pytest.mark.parametrize(
    ("help_text", "unit"),
    [
        ("Prefix cache hits, in terms of number of cached tokens.", "tokens"),
        ("GPU prefix cache hits, in terms of number of cached blocks.", "blocks"),
        ("Hits.", None),
        (None, None),
    ],
)
def test_prefix_unit_comes_from_help(help_text: str | None, unit: str | None) -> None:
    """C75: older servers count blocks, newer ones tokens; the HELP text says which."""
    assert prefix_unit(help_text) == unit


def test_time_unit_comes_from_name_then_help() -> None:
    """A name in seconds is believed; else HELP tells milliseconds from seconds."""
    assert time_scale("vllm:request_queue_time_seconds", "in milliseconds") == 1.0
    assert time_scale("tgi_request_duration", "Request duration in milliseconds") == 1e-3
    assert time_scale("tgi_request_duration", None) == 1.0
