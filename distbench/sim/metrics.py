"""
Counters and histograms of the simulated engines (floor F3, pure).

What is counted when follows vLLM 0.32: prompt tokens when the first token comes, waiting and running as they were at the end of the
last step, finished requests only if they were not aborted. The text format is in exposition.py. Written by hand because a histogram
is fed for every token: ``observe`` here costs a fifth of prometheus_client's.
"""

from __future__ import annotations

import dataclasses
import itertools
from bisect import bisect_left
from collections.abc import Sequence

from distbench.sim.scheduler import Counters, SimRequest, Step
from distbench.units import NS_PER_S

_TTFT_BUCKETS = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
)
TTFT_BUCKETS = (*_TTFT_BUCKETS, 40.0, 80.0, 160.0, 640.0, 2560.0)
_ITL_BUCKETS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0)
ITL_BUCKETS = (*_ITL_BUCKETS, 40.0, 80.0)
_REQUEST_BUCKETS = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0)
REQUEST_BUCKETS = (*_REQUEST_BUCKETS, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0)
ITERATION_BUCKETS = (1.0, *(float(2**k) for k in range(3, 15)))
N_BUCKETS = (1.0, 2.0, 5.0, 10.0, 20.0)
PREEMPTION_BUCKETS = (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0)


def length_buckets(max_model_len: int) -> tuple[float, ...]:
    """Return 1, 2, 5, 10, 20, 50 ... up to the context length, as vLLM buckets its token counts."""
    bounds: list[float] = []
    for exponent in itertools.count():
        for mantissa in (1, 2, 5):
            bound = mantissa * 10**exponent
            if bound > max_model_len:
                return tuple(bounds)
            bounds.append(float(bound))
    raise AssertionError("unreachable: count() is endless")


class Histogram:
    """
    Counts of values by upper bound.

    Args:
        bounds: Ascending, the infinite one left out.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count a value; one that equals a bound is inside it."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def cumulative(self) -> list[int]:
        """Return, per bound and for infinity, how many values are at or below it."""
        return list(itertools.accumulate(self.counts))

    @property
    def count(self) -> int:
        """Number of values."""
        return sum(self.counts)


@dataclasses.dataclass(slots=True)
class Gauges:
    """What an engine tells of itself; it changes at the end of a step only."""

    running: int = 0
    waiting: int = 0
    kv_usage_ratio: float = 0.0


class EngineMetrics:
    """
    Everything one engine counts.

    Args:
        counters: The scheduler's own counters, read when the metrics are asked for.
        max_model_len: Decides the buckets of token counts.
    """

    def __init__(self, counters: Counters, max_model_len: int) -> None:
        lengths = length_buckets(max_model_len)
        self.counters = counters
        self.gauges = Gauges()
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.generation_tokens = 0
        self.success = {"stop": 0, "length": 0, "abort": 0, "error": 0, "repetition": 0}
        self.histograms = {
            "request_prompt_tokens": Histogram(lengths),
            "request_generation_tokens": Histogram(lengths),
            "iteration_tokens_total": Histogram(ITERATION_BUCKETS),
            "request_max_num_generation_tokens": Histogram(lengths),
            "request_params_n": Histogram(N_BUCKETS),
            "request_params_max_tokens": Histogram(lengths),
            "time_to_first_token_seconds": Histogram(TTFT_BUCKETS),
            "inter_token_latency_seconds": Histogram(ITL_BUCKETS),
            "request_time_per_output_token_seconds": Histogram(ITL_BUCKETS),
            "e2e_request_latency_seconds": Histogram(REQUEST_BUCKETS),
            "request_queue_time_seconds": Histogram(REQUEST_BUCKETS),
            "request_inference_time_seconds": Histogram(REQUEST_BUCKETS),
            "request_prefill_time_seconds": Histogram(REQUEST_BUCKETS),
            "request_decode_time_seconds": Histogram(REQUEST_BUCKETS),
            "request_num_preemptions": Histogram(PREEMPTION_BUCKETS),
            "request_prefill_kv_computed_tokens": Histogram(lengths),
        }
        self._observe_ttft = self.histograms["time_to_first_token_seconds"].observe
        self._observe_itl = self.histograms["inter_token_latency_seconds"].observe

    def record_step(self, step: Step, produced: Sequence[SimRequest], now_ns: int) -> None:
        """
        Count the outcome of a step and stamp the requests' token times.

        Args:
            step: What was computed.
            produced: Requests that got a token.
            now_ns: When the step ended.
        """
        if not produced:
            return
        num_prompt_tokens = 0
        for request in produced:
            if request.first_token_ns is None:
                request.first_token_ns = now_ns
                num_prompt_tokens += request.num_prompt_tokens
                self.cached_tokens += request.num_cached_tokens or 0
                self._observe_ttft((now_ns - request.arrival_ns) / NS_PER_S)
            else:
                self._observe_itl((now_ns - (request.last_token_ns or now_ns)) / NS_PER_S)
            request.last_token_ns = now_ns
            if request.finish_reason is not None:
                self._record_finished(request, now_ns)
        self.prompt_tokens += num_prompt_tokens
        self.generation_tokens += len(produced)
        self.histograms["iteration_tokens_total"].observe(num_prompt_tokens + len(produced))

    def _record_finished(self, request: SimRequest, now_ns: int) -> None:
        reason = request.finish_reason
        scheduled_ns, first_ns, last_ns = request.scheduled_ns, request.first_token_ns, request.last_token_ns
        if reason is None or scheduled_ns is None or first_ns is None or last_ns is None:
            raise AssertionError("a finished request was scheduled and has tokens")
        self.success[reason] += 1
        num_output = request.num_output_tokens
        decode_s = (last_ns - first_ns) / NS_PER_S
        for name, value in (
            ("request_prompt_tokens", request.num_prompt_tokens),
            ("request_generation_tokens", num_output),
            ("request_max_num_generation_tokens", num_output),
            ("request_params_n", 1),
            ("request_params_max_tokens", request.max_tokens),
            ("request_time_per_output_token_seconds", decode_s / (num_output - 1) if num_output > 1 else 0.0),
            ("e2e_request_latency_seconds", (now_ns - request.arrival_ns) / NS_PER_S),
            ("request_queue_time_seconds", (scheduled_ns - request.arrival_ns) / NS_PER_S),
            ("request_inference_time_seconds", (last_ns - scheduled_ns) / NS_PER_S),
            ("request_prefill_time_seconds", (first_ns - scheduled_ns) / NS_PER_S),
            ("request_decode_time_seconds", decode_s),
            ("request_num_preemptions", request.num_preemptions),
            (
                "request_prefill_kv_computed_tokens",
                request.num_prompt_tokens - (request.num_cached_tokens or 0),
            ),
        ):
            self.histograms[name].observe(value)
