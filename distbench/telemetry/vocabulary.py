"""
One vocabulary over the metric names of the servers (floor F2, pure).

vLLM (today's names and older ones), SGLang and TGI export the same things under different names; the simulator and the C mock use
vLLM's. Each quantity lists its names, newest first, and of several that a server exports at once only the first is taken. A
quantity that no name of is found is missing, with the reason "not exported", and never zero.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from enum import StrEnum

PROCESS_START = "process_start_time_seconds"
CACHE_CONFIG = "vllm:cache_config_info"
# Cumulative, by the label le: how many engine steps took so many tokens or fewer.
STEP_BUCKETS = "vllm:iteration_tokens_total_bucket"
NOT_EXPORTED = "not exported"
NO_OBSERVATIONS = "no observations"

_PREFIXES = ("vllm:", "sglang:", "tgi_", "DCGM_FI_")
# Labels that name an engine with its own queue and cache: its figures are added to those of the others.
ENGINE_LABELS = ("engine", "dp_rank")
# Labels of ranks that work on the same requests together: what they export is the same work seen again, so the largest is taken.
REPLICATED_LABELS = ("tp_rank", "pp_rank", "moe_ep_rank", "ep_rank")
MODEL_LABELS = ("model_name", "model")


class Quantity(StrEnum):
    """What a server can tell of itself; docs/verdicts.md says what each is used for."""

    RUNNING = "running"
    WAITING = "waiting"
    KV_USAGE = "kv_usage"
    PREFIX_QUERIES = "prefix_queries"
    PREFIX_HITS = "prefix_hits"
    PREEMPTIONS = "preemptions"
    PROMPT_TOKENS = "prompt_tokens"
    PROMPT_TOKENS_CACHED = "prompt_tokens_cached"
    GENERATION_TOKENS = "generation_tokens"
    REQUESTS_FINISHED = "requests_finished"
    REJECTIONS = "rejections"
    QUEUE_TIME = "queue_time"
    PREFILL_TIME = "prefill_time"
    DECODE_TIME = "decode_time"
    TTFT = "ttft"
    ITL = "itl"
    E2E = "e2e"
    STEP_TOKENS = "step_tokens"
    FINISHED_PROMPT_TOKENS = "finished_prompt_tokens"
    FINISHED_GENERATION_TOKENS = "finished_generation_tokens"


class Shape(StrEnum):
    """How a quantity is exported: a level, a running count, or the sum and count of observations."""

    GAUGE = "gauge"
    COUNTER = "counter"
    OBSERVED = "observed"


@dataclasses.dataclass(frozen=True, slots=True)
class Family:
    """
    A quantity and where it is found.

    Attributes:
        shape: gauge, counter or observed.
        names: Sample names, newest first; of observed quantities without _sum and _count.
        is_time: Whether its values are seconds.
    """

    shape: Shape
    names: tuple[str, ...]
    is_time: bool = False


def _times(*names: str) -> Family:
    return Family(Shape.OBSERVED, names, is_time=True)


FAMILIES: Mapping[Quantity, Family] = {
    Quantity.RUNNING: Family(
        Shape.GAUGE, ("vllm:num_requests_running", "sglang:num_running_reqs", "tgi_batch_current_size")
    ),
    Quantity.WAITING: Family(
        Shape.GAUGE, ("vllm:num_requests_waiting", "sglang:num_queue_reqs", "tgi_queue_size")
    ),
    Quantity.KV_USAGE: Family(
        Shape.GAUGE, ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage")
    ),
    # SGLang has no counter of queries: every prompt token is looked up.
    Quantity.PREFIX_QUERIES: Family(
        Shape.COUNTER,
        (
            "vllm:prefix_cache_queries_total",
            "vllm:gpu_prefix_cache_queries_total",
            "sglang:prompt_tokens_total",
        ),
    ),
    Quantity.PREFIX_HITS: Family(
        Shape.COUNTER,
        ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total", "sglang:cached_tokens_total"),
    ),
    # SGLang's gauge num_retracted_reqs tells of the last step only and is left out.
    Quantity.PREEMPTIONS: Family(
        Shape.COUNTER,
        (
            "vllm:num_preemptions_total",
            "sglang:num_retracted_requests_total",
            "sglang:num_retracted_reqs_total",
        ),
    ),
    Quantity.PROMPT_TOKENS: Family(
        Shape.COUNTER,
        ("vllm:prompt_tokens_total", "sglang:prompt_tokens_total", "tgi_request_input_length_sum"),
    ),
    Quantity.PROMPT_TOKENS_CACHED: Family(
        Shape.COUNTER, ("vllm:prompt_tokens_cached_total", "sglang:cached_tokens_total")
    ),
    # TGI counts tokens when a request ends.
    Quantity.GENERATION_TOKENS: Family(
        Shape.COUNTER,
        (
            "vllm:generation_tokens_total",
            "sglang:generation_tokens_total",
            "tgi_request_generated_tokens_sum",
        ),
    ),
    Quantity.REQUESTS_FINISHED: Family(
        Shape.COUNTER, ("vllm:request_success_total", "sglang:num_requests_total", "tgi_request_success")
    ),
    Quantity.REJECTIONS: Family(
        Shape.COUNTER,
        ("vllm:admission_rejections_total", "sglang:num_aborted_requests_total", "tgi_request_failure"),
    ),
    Quantity.QUEUE_TIME: _times(
        "vllm:request_queue_time_seconds", "sglang:queue_time_seconds", "tgi_request_queue_duration"
    ),
    Quantity.PREFILL_TIME: _times("vllm:request_prefill_time_seconds"),
    Quantity.DECODE_TIME: _times("vllm:request_decode_time_seconds"),
    Quantity.TTFT: _times("vllm:time_to_first_token_seconds", "sglang:time_to_first_token_seconds"),
    Quantity.ITL: _times(
        "vllm:inter_token_latency_seconds",
        "vllm:time_per_output_token_seconds",
        "sglang:inter_token_latency_seconds",
        "sglang:time_per_output_token_seconds",
        "tgi_request_mean_time_per_token_duration",
    ),
    Quantity.E2E: _times(
        "vllm:e2e_request_latency_seconds", "sglang:e2e_request_latency_seconds", "tgi_request_duration"
    ),
    Quantity.STEP_TOKENS: Family(Shape.OBSERVED, ("vllm:iteration_tokens_total",)),
    Quantity.FINISHED_PROMPT_TOKENS: Family(
        Shape.OBSERVED, ("vllm:request_prompt_tokens", "tgi_request_input_length")
    ),
    Quantity.FINISHED_GENERATION_TOKENS: Family(
        Shape.OBSERVED, ("vllm:request_generation_tokens", "tgi_request_generated_tokens")
    ),
}

# Counters that stand still when no request is served: what settling compares.
TRAFFIC_COUNTERS = (Quantity.GENERATION_TOKENS, Quantity.PROMPT_TOKENS, Quantity.REQUESTS_FINISHED)


def sample_names(quantity: Quantity, name: str) -> tuple[str, ...]:
    """Return the sample names behind a family's name: itself, or its _sum and _count."""
    return (f"{name}_sum", f"{name}_count") if FAMILIES[quantity].shape is Shape.OBSERVED else (name,)


_KNOWN = frozenset(
    sample
    for quantity, family in FAMILIES.items()
    for name in family.names
    for sample in sample_names(quantity, name)
)
_CREATED = frozenset(name.removesuffix("_total") + "_created" for name in _KNOWN if name.endswith("_total"))
# The names that the analysis reads; everything else that is recorded is there for people and programs.
ANALYSED = _KNOWN | _CREATED | {PROCESS_START, CACHE_CONFIG, STEP_BUCKETS}


def is_recorded(name: str) -> bool:
    """
    Tell whether a sample goes into the server's rows.

    Kept: everything of the known servers and of DCGM, except histogram buckets (three quarters of the lines; means come from _sum and
    _count, and the buckets are too wide for quantiles) but those of the engine steps' sizes, and except _created stamps of families that
    are not analysed; also the start time of the process. Left out: the server's http, Python and garbage-collector families.
    """
    if name.endswith("_bucket"):
        return name == STEP_BUCKETS
    if name.endswith("_created"):
        return name in _CREATED
    return name.startswith(_PREFIXES) or name == PROCESS_START


def resolve(present: Iterable[str]) -> dict[Quantity, str]:
    """
    Choose the name under which a server exports each quantity.

    Args:
        present: All sample names of one target.

    Returns:
        Family name by quantity, newest first; a quantity that is not exported is not in it.
    """
    names = frozenset(present)
    chosen = {}
    for quantity, family in FAMILIES.items():
        for name in family.names:
            if names.issuperset(sample_names(quantity, name)):
                chosen[quantity] = name
                break
    return chosen


def time_scale(name: str, help_text: str | None) -> float:
    """
    Return what a time of a family is multiplied by to be seconds.

    Names that end in _seconds are believed; elsewhere the HELP text decides between seconds and milliseconds.
    """
    words = "" if help_text is None else help_text.lower()
    if name.endswith("_seconds"):
        return 1.0
    return 1e-3 if "millisecond" in words or " ms" in words or name.endswith("_ms") else 1.0


def prefix_unit(help_text: str | None) -> str | None:
    """Return what the prefix-cache counters count, "tokens" or "blocks", from their HELP text; None where it does not say."""
    words = "" if help_text is None else help_text.lower()
    if "block" in words:
        return "blocks"
    return "tokens" if "token" in words else None
