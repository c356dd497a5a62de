"""
The text of ``/metrics``, with vLLM 0.32's names, labels, types and help texts (floor F3).

``max_num_seqs`` is left out on purpose: vLLM does not export it, and no verdict may come to rest on it. Each counter has a
``_created`` gauge beside it (a time of day, never a value), as prometheus_client writes them.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Iterable, Sequence

from distbench.sim.metrics import EngineMetrics
from distbench.sim.process_metrics import format_value, write_head, write_process_families
from distbench.sim.settings import SimSettings

_Samples = Iterable[tuple[str, float]]

_WAITING_BY_REASON_HELP = (
    "Number of waiting requests by reason. Reason labels: 'capacity' = waiting for scheduling capacity; 'deferred' = deferred by "
    "transient constraints (LoRA budget, KV transfer, blocked status). Sum of all reasons equals vllm:num_requests_waiting."
)
_SLEEP_HELP = (
    "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is awake; weights_offloaded = 1 means sleep "
    "level 1; discard_all = 1 means sleep level 2."
)
_EXTERNAL = "External prefix cache {} from KV connector cross-instance cache sharing, in terms of number of {} tokens."
_CACHED_BY_SOURCE_HELP = (
    "Prefix-cache hit tokens by the cache tier that supplied them: device (local HBM), host (offloaded to DRAM), disk, p2p "
    "(transferred from another vLLM instance) or external_unspecified. Counted at admission; sums to vllm:prefix_cache_hits + "
    "vllm:external_prefix_cache_hits."
)
_FLOPS_HELP = (
    "Estimated number of floating point operations per GPU (for Model Flops Utilization calculations)."
)
_BYTES_HELP = "Estimated number of bytes {} memory per GPU (for Model Flops Utilization calculations)."

_HISTOGRAM_HELP = {
    "request_prompt_tokens": "Number of prefill tokens processed.",
    "request_generation_tokens": "Number of generation tokens processed.",
    "iteration_tokens_total": "Histogram of number of tokens per engine_step.",
    "request_max_num_generation_tokens": "Histogram of maximum number of requested generation tokens.",
    "request_params_n": "Histogram of the n request parameter.",
    "request_params_max_tokens": "Histogram of the max_tokens request parameter.",
    "time_to_first_token_seconds": "Histogram of time to first token in seconds.",
    "inter_token_latency_seconds": "Histogram of inter-token latency in seconds.",
    "request_time_per_output_token_seconds": "Histogram of time_per_output_token_seconds per request.",
    "e2e_request_latency_seconds": "Histogram of e2e request latency in seconds.",
    "request_queue_time_seconds": "Histogram of time spent in WAITING phase for request.",
    "request_inference_time_seconds": "Histogram of time spent in RUNNING phase for request.",
    "request_prefill_time_seconds": "Histogram of time spent in PREFILL phase for request.",
    "request_decode_time_seconds": "Histogram of time spent in DECODE phase for request.",
    "request_num_preemptions": "Histogram of the number of times a request was preempted.",
    "request_prefill_kv_computed_tokens": "Histogram of new KV tokens computed during prefill (excluding cached tokens).",
}


@dataclasses.dataclass(slots=True)
class ServerCounters:
    """
    What the HTTP side counts.

    Attributes:
        rejected_reqs: Requests turned away by the queue limit.
        http: Responses by (handler, method, status class such as "2xx"); errors inside a 200 stream count as 2xx, as in vLLM.
    """

    rejected_reqs: int = 0
    http: dict[tuple[str, str, str], int] = dataclasses.field(default_factory=dict)

    def count(self, handler: str, method: str, status: int) -> None:
        """Count a response."""
        key = (handler, method, f"{status // 100}xx")
        self.http[key] = self.http.get(key, 0) + 1


class Exposition:
    """
    Writes the metrics of a server.

    Args:
        settings: For the labels and the KV cache's description.
        engines: Their metrics, by engine index.
        server: What the HTTP side counted.
    """

    def __init__(
        self, settings: SimSettings, engines: Sequence[EngineMetrics], server: ServerCounters
    ) -> None:
        self._settings = settings
        self._engines = engines
        self._server = server
        self._created = time.time()
        model = settings.model.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        self._model = f'model_name="{model}"'
        self._labels = [f'engine="{index}",{self._model}' for index in range(len(engines))]

    def render(self) -> bytes:
        """Return the whole text."""
        lines: list[str] = []
        write_process_families(lines)
        self._engine_families(lines)
        self._histograms(lines)
        self._cache_config(lines)
        self._http_families(lines)
        lines.append("")
        return "\n".join(lines).encode()

    def _engine_families(self, lines: list[str]) -> None:
        counter, gauge = self._counter, self._gauge

        def zero(_: EngineMetrics) -> float:
            return 0

        counter(lines, "estimated_flops_per_gpu", _FLOPS_HELP, zero)
        counter(lines, "estimated_read_bytes_per_gpu", _BYTES_HELP.format("read from"), zero)
        counter(lines, "estimated_write_bytes_per_gpu", _BYTES_HELP.format("written to"), zero)
        gauge(
            lines,
            "num_requests_running",
            "Number of requests in model execution batches.",
            lambda m: m.gauges.running,
        )
        gauge(
            lines,
            "num_requests_waiting",
            "Number of requests waiting to be processed.",
            lambda m: m.gauges.waiting,
        )
        self._labelled_gauge(
            lines,
            "num_requests_waiting_by_reason",
            _WAITING_BY_REASON_HELP,
            "reason",
            lambda m: (("capacity", m.gauges.waiting), ("deferred", 0)),
        )
        self._labelled_gauge(
            lines,
            "engine_sleep_state",
            _SLEEP_HELP,
            "sleep_state",
            lambda _: (("awake", 1), ("weights_offloaded", 0), ("discard_all", 0)),
        )
        gauge(
            lines,
            "kv_cache_usage_perc",
            "KV-cache usage. 1 means 100 percent usage.",
            lambda m: m.gauges.kv_usage_ratio,
        )
        queried = "Prefix cache queries, in terms of number of queried tokens."
        counter(lines, "prefix_cache_queries", queried, lambda m: m.counters.prefix_queried_tokens)
        hit = "Prefix cache hits, in terms of number of cached tokens."
        counter(lines, "prefix_cache_hits", hit, lambda m: m.counters.prefix_hit_tokens)
        counter(lines, "external_prefix_cache_queries", _EXTERNAL.format("queries", "queried"), zero)
        counter(lines, "external_prefix_cache_hits", _EXTERNAL.format("hits", "cached"), zero)
        counter(
            lines, "mm_cache_queries", "Multi-modal cache queries, in terms of number of queried items.", zero
        )
        counter(lines, "mm_cache_hits", "Multi-modal cache hits, in terms of number of cached items.", zero)
        preempted = "Cumulative number of preemption from the engine."
        counter(lines, "num_preemptions", preempted, lambda m: m.counters.num_preemptions)
        counter(lines, "prompt_tokens", "Number of prefill tokens processed.", lambda m: m.prompt_tokens)
        self._labelled_counter(
            lines, "prompt_tokens_by_source", "Number of prompt tokens by source.", "source", _by_source
        )
        cached = "Number of cached prompt tokens (local + external)."
        counter(lines, "prompt_tokens_cached", cached, lambda m: m.cached_tokens)
        self._labelled_counter(
            lines, "prompt_tokens_cached_by_source", _CACHED_BY_SOURCE_HELP, "source", _cached_by_source
        )
        counter(
            lines,
            "generation_tokens",
            "Number of generation tokens processed.",
            lambda m: m.generation_tokens,
        )
        self._success(lines)
        self._rejections(lines)

    def _success(self, lines: list[str]) -> None:
        name = "vllm:request_success"
        samples = [
            (f'engine="{index}",finished_reason="{reason}",{self._model}', count)
            for index, metrics in enumerate(self._engines)
            for reason, count in metrics.success.items()
        ]
        self._write_counter(lines, name, "Count of successfully processed requests.", samples)

    def _rejections(self, lines: list[str]) -> None:
        samples = [
            (f'{self._model},reason="max_num_queued_reqs"', self._server.rejected_reqs),
            (f'{self._model},reason="max_num_queued_tokens"', 0),
        ]
        help_text = "Number of admission attempts rejected by a queue limit, by reason."
        self._write_counter(lines, "vllm:admission_rejections", help_text, samples)

    def _counter(
        self, lines: list[str], name: str, help_text: str, value: Callable[[EngineMetrics], float]
    ) -> None:
        samples = [
            (label, value(metrics)) for label, metrics in zip(self._labels, self._engines, strict=True)
        ]
        self._write_counter(lines, f"vllm:{name}", help_text, samples)

    def _gauge(
        self, lines: list[str], name: str, help_text: str, value: Callable[[EngineMetrics], float]
    ) -> None:
        write_head(lines, f"vllm:{name}", help_text, "gauge")
        lines += [
            f"vllm:{name}{{{label}}} {format_value(value(metrics))}"
            for label, metrics in zip(self._labels, self._engines, strict=True)
        ]

    def _labelled_gauge(
        self,
        lines: list[str],
        name: str,
        help_text: str,
        key: str,
        values: Callable[[EngineMetrics], _Samples],
    ) -> None:
        write_head(lines, f"vllm:{name}", help_text, "gauge")
        lines += [
            f"vllm:{name}{{{label}}} {format_value(value)}" for label, value in self._expand(key, values)
        ]

    def _labelled_counter(
        self,
        lines: list[str],
        name: str,
        help_text: str,
        key: str,
        values: Callable[[EngineMetrics], _Samples],
    ) -> None:
        self._write_counter(lines, f"vllm:{name}", help_text, list(self._expand(key, values)))

    def _expand(self, key: str, values: Callable[[EngineMetrics], _Samples]) -> _Samples:
        for label, metrics in zip(self._labels, self._engines, strict=True):
            for word, value in values(metrics):
                yield f'{label},{key}="{word}"', value

    def _write_counter(
        self, lines: list[str], name: str, help_text: str, samples: Sequence[tuple[str, float]]
    ) -> None:
        write_head(lines, f"{name}_total", help_text, "counter")
        lines += [f"{name}_total{{{labels}}} {format_value(value)}" for labels, value in samples]
        write_head(lines, f"{name}_created", help_text, "gauge")
        created = format_value(self._created)
        lines += [f"{name}_created{{{labels}}} {created}" for labels, _ in samples]

    def _histograms(self, lines: list[str]) -> None:
        created = format_value(self._created)
        for short, help_text in _HISTOGRAM_HELP.items():
            name = f"vllm:{short}"
            write_head(lines, name, help_text, "histogram")
            for index, metrics in enumerate(self._engines):
                histogram = metrics.histograms[short]
                cumulative = histogram.cumulative()
                bounds = _bound_texts(histogram.bounds)
                head = f'{name}_bucket{{engine="{index}",le="'
                lines += [
                    f'{head}{bound}",{self._model}}} {count}.0'
                    for bound, count in zip(bounds, cumulative, strict=True)
                ]
                lines.append(f"{name}_count{{{self._labels[index]}}} {cumulative[-1]}.0")
                lines.append(f"{name}_sum{{{self._labels[index]}}} {format_value(histogram.total)}")
            write_head(lines, f"{name}_created", help_text, "gauge")
            lines += [f"{name}_created{{{label}}} {created}" for label in self._labels]

    def _cache_config(self, lines: list[str]) -> None:
        s = self._settings
        size_tokens = s.num_blocks * s.block_size
        write_head(lines, "vllm:cache_config_info", "Information of the LLMEngine CacheConfig", "gauge")
        lines += [
            f'vllm:cache_config_info{{block_size="{s.block_size}",cache_dtype="auto",effective_attention_block_size="{s.block_size}",'
            f'enable_prefix_caching="{s.enable_prefix_caching}",engine="{index}",'
            f'kv_cache_max_concurrency="{size_tokens / s.max_model_len}",kv_cache_size_tokens="{size_tokens}",'
            f'num_cpu_blocks="None",num_gpu_blocks="{s.num_blocks}",num_gpu_blocks_override="{s.num_blocks}",'
            f'prefix_caching_hash_algo="builtin",sliding_window="None"}} 1.0'
            for index in range(len(self._engines))
        ]

    def _http_families(self, lines: list[str]) -> None:
        samples = [
            (f'handler="{handler}",method="{method}",status="{status}"', count)
            for (handler, method, status), count in self._server.http.items()
        ]
        self._write_counter(
            lines, "http_requests", "Total number of requests by method, status and handler.", samples
        )


@functools.cache
def _bound_texts(bounds: tuple[float, ...]) -> tuple[str, ...]:
    return (*map(format_value, bounds), "+Inf")


def _by_source(metrics: EngineMetrics) -> _Samples:
    return (
        ("local_compute", metrics.prompt_tokens - metrics.cached_tokens),
        ("local_cache_hit", metrics.cached_tokens),
        ("external_kv_transfer", 0),
    )


def _cached_by_source(metrics: EngineMetrics) -> _Samples:
    others = ("host", "p2p", "disk", "external_unspecified")
    return (("device", metrics.counters.prefix_hit_tokens), *((word, 0) for word in others))
