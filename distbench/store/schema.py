"""
The Arrow schemas of a run directory (floor F2): the contract with everything that reads one.

Every column is explained in docs/metrics.md, and a test holds the two together. Times are int64 ns since the run's epoch on the
driver's clock. Null means "did not happen" or "not measured"; it is never written as zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

SCHEMA_VERSION = 1


def _schema(fields: Sequence[pa.Field[Any]]) -> pa.Schema:
    return pa.schema(fields)


# Words that repeat in every row are dictionary-encoded on disk by Parquet anyway; as plain strings they open alike everywhere.
REQUESTS = _schema(
    [
        pa.field("level", pa.int16(), nullable=False),
        pa.field("client", pa.int16(), nullable=False),
        pa.field("connection", pa.int32(), nullable=False),
        pa.field("index", pa.int64(), nullable=False),
        pa.field("request_id", pa.int64(), nullable=False),
        pa.field("phase", pa.string(), nullable=False),
        pa.field("target", pa.string(), nullable=False),
        pa.field("scheduled_ns", pa.int64()),
        pa.field("first_sent_ns", pa.int64()),
        pa.field("sent_ns", pa.int64()),
        pa.field("first_byte_ns", pa.int64()),
        pa.field("first_token_ns", pa.int64()),
        pa.field("first_answer_ns", pa.int64()),
        pa.field("last_token_ns", pa.int64()),
        pa.field("end_ns", pa.int64()),
        pa.field("connect_ns", pa.int64()),
        pa.field("outcome", pa.string(), nullable=False),
        pa.field("error_kind", pa.string()),
        pa.field("http_status", pa.int16()),
        pa.field("error_text", pa.string()),
        pa.field("finish_reason", pa.string()),
        pa.field("prompt_tokens", pa.int32()),
        pa.field("completion_tokens", pa.int32()),
        pa.field("cached_tokens", pa.int32()),
        pa.field("reasoning_tokens", pa.int32()),
        pa.field("token_source", pa.string()),
        pa.field("user_messages", pa.int16(), nullable=False),
        pa.field("prompt_id", pa.int64(), nullable=False),
        pa.field("chunk_us", pa.list_(pa.uint32())),
        pa.field("chunk_tokens", pa.list_(pa.uint16())),
        pa.field("bytes_received", pa.int64(), nullable=False),
        pa.field("reads", pa.int32(), nullable=False),
        pa.field("attempts", pa.int8(), nullable=False),
        pa.field("reconnects", pa.int8(), nullable=False),
        pa.field("stamp", pa.string()),
        pa.field("client_lag_us", pa.int32()),
        # Beyond the contract's columns: what the server itself said of this request, and what it was asked for.
        pa.field("max_tokens", pa.int32()),
        pa.field("expected_prompt_tokens", pa.int32()),
        pa.field("content_encoding", pa.string()),
        pa.field("server_ttft_us", pa.int64()),
        pa.field("server_queue_us", pa.int64()),
    ]
)

# One row a client a sample, about 1 per second while a level runs. Rates and shares cover the time since the sample before.
CLIENTS = _schema(
    [
        pa.field("level", pa.int16(), nullable=False),
        pa.field("client", pa.int16(), nullable=False),
        pa.field("time_ns", pa.int64(), nullable=False),
        pa.field("interval_s", pa.float64(), nullable=False),
        pa.field("connections", pa.int32(), nullable=False),  # asked of this client
        pa.field("connected", pa.int32(), nullable=False),
        pa.field("in_flight", pa.int32(), nullable=False),  # now
        pa.field("in_flight_mean", pa.float64(), nullable=False),  # time-weighted over the interval
        pa.field("loop_cpu_ratio", pa.float64()),  # CPU of the loop's thread / wall
        pa.field("process_cpu_ratio", pa.float64()),  # CPU of the whole process / wall; may exceed 1
        pa.field("lag_p50_s", pa.float64()),  # kernel stamp -> read
        pa.field("lag_p99_s", pa.float64()),
        pa.field("lag_max_s", pa.float64()),
        pa.field("turnaround_p50_s", pa.float64()),  # end of a response -> next request sent, same connection
        pa.field("turnaround_p99_s", pa.float64()),
        pa.field("turnaround_sum_s", pa.float64()),
        pa.field("turnarounds", pa.int32(), nullable=False),
        pa.field("send_lag_p99_s", pa.float64()),  # open loop: sent - scheduled
        pa.field("requests_sent", pa.int32(), nullable=False),
        pa.field("requests_done", pa.int32(), nullable=False),
        pa.field("output_tokens", pa.int64(), nullable=False),
        pa.field("reads", pa.int64(), nullable=False),
        pa.field("bytes_received", pa.int64(), nullable=False),
        pa.field("waiting_parse", pa.int32(), nullable=False),
        pa.field("rss_bytes", pa.int64()),
    ]
)

# One row a target a scrape a series.
SERVER = _schema(
    [
        pa.field("time_ns", pa.int64(), nullable=False),
        pa.field("target", pa.string(), nullable=False),
        pa.field("name", pa.string(), nullable=False),  # as the server names it
        pa.field("labels", pa.map_(pa.string(), pa.string()), nullable=False),
        pa.field("value", pa.float64()),
    ]
)

_QUANTILES = ("p50", "p90", "p99")
LATENCIES = ("ttft", "ttfo", "tpot", "icl", "e2e", "response")
RATES = ("request_rate", "output_token_rate", "total_token_rate", "user_message_rate")

LEVELS = _schema(
    [
        pa.field("level", pa.int16(), nullable=False),
        pa.field("repeat", pa.int16(), nullable=False),
        pa.field("connections", pa.int32(), nullable=False),
        pa.field("clients", pa.int16(), nullable=False),
        pa.field("targets", pa.int16(), nullable=False),
        pa.field("pattern", pa.string(), nullable=False),
        pa.field("users_per_request", pa.int16(), nullable=False),
        pa.field("offered_rate", pa.float64()),  # requests/s asked by an open-loop pattern
        *[
            pa.field(f"requests_{word}", pa.int64(), nullable=False)
            for word in ("planned", "ok", "failed", "cut", "dropped", "lost")
        ],
        pa.field("requests_clamped", pa.int64()),  # answered, cut short by the context
        pa.field("requests_overflowed", pa.int64()),  # failed, refused as longer than the context
        pa.field(
            "answered_ratio", pa.float64()
        ),  # user messages answered, clamped ones in part / user messages asked
        pa.field("window_start_ns", pa.int64()),
        pa.field("window_end_ns", pa.int64()),
        pa.field("window_s", pa.float64()),
        pa.field("whole_s", pa.float64()),
        *[pa.field(rate, pa.float64()) for rate in RATES],
        *[pa.field(f"{rate}_whole", pa.float64()) for rate in RATES],
        *[pa.field(f"{name}_{q}_s", pa.float64()) for name in LATENCIES for q in _QUANTILES],
        *[pa.field(f"{name}_n", pa.int64(), nullable=False) for name in LATENCIES],
        pa.field("goodput_rate", pa.float64()),
        pa.field("prompt_tokens_mean", pa.float64()),
        pa.field("completion_tokens_mean", pa.float64()),
        pa.field(
            "cached_tokens_ratio", pa.float64()
        ),  # usage: cached / prompt tokens of the window's requests
        pa.field("in_flight_mean", pa.float64()),
        pa.field("bundled_ratio", pa.float64()),
        pa.field("running_mean", pa.float64()),
        pa.field("running_max", pa.float64()),
        pa.field("waiting_mean", pa.float64()),
        pa.field("waiting_ratio", pa.float64()),  # share of the scrapes with waiting > 0
        pa.field("kv_usage_mean", pa.float64()),
        pa.field("kv_usage_max", pa.float64()),
        pa.field("prefix_hit_ratio", pa.float64()),
        pa.field("preemptions", pa.float64()),
        pa.field("queue_time_mean_s", pa.float64()),
        pa.field("prefill_time_mean_s", pa.float64()),
        pa.field("decode_time_mean_s", pa.float64()),
        pa.field("gpu_util_mean", pa.float64()),
        pa.field("sm_active_mean", pa.float64()),
        pa.field("dram_active_mean", pa.float64()),
        pa.field("tensor_active_mean", pa.float64()),
        pa.field("gpu_power_mean_w", pa.float64()),
        pa.field("scrapes", pa.int32(), nullable=False),
        pa.field("client_cpu_max", pa.float64()),
        pa.field("client_lag_p99_s", pa.float64()),
        pa.field("turnaround_p99_s", pa.float64()),
        pa.field("turnaround_ratio", pa.float64()),  # idle turnaround / connection-time
        pa.field("send_lag_p99_s", pa.float64()),
        pa.field("reconciled", pa.bool_()),
        pa.field("verdict", pa.string()),
        pa.field("limit", pa.string()),
        pa.field("valid", pa.bool_(), nullable=False),
        pa.field("invalid_reason", pa.string()),
    ]
)
