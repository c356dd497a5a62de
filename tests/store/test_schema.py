"""The schemas are the contract: its columns are all there, in their types, and all are explained."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest

from distbench.core.records import RequestRecord
from distbench.store.schema import CLIENTS, LEVELS, REQUESTS, SERVER

METRICS = Path(__file__).parents[2] / "docs" / "metrics.md"

CONTRACT_REQUESTS = """
level int16, client int16, connection int32, index int64, request_id int64, phase string, target string, scheduled_ns int64,
first_sent_ns int64, sent_ns int64, first_byte_ns int64, first_token_ns int64, first_answer_ns int64, last_token_ns int64, end_ns int64,
connect_ns int64, outcome string, error_kind string, http_status int16, error_text string, finish_reason string, prompt_tokens int32,
completion_tokens int32, cached_tokens int32, reasoning_tokens int32, token_source string, user_messages int16, prompt_id int64,
bytes_received int64, reads int32, attempts int8, reconnects int8, stamp string, client_lag_us int32
"""
CONTRACT_LEVELS = """
level repeat connections clients targets pattern users_per_request requests_planned requests_ok requests_failed requests_cut
requests_dropped requests_lost window_s request_rate output_token_rate total_token_rate user_message_rate request_rate_whole
output_token_rate_whole total_token_rate_whole user_message_rate_whole ttft_p50_s ttft_p90_s ttft_p99_s ttfo_p50_s ttfo_p90_s
ttfo_p99_s tpot_p50_s tpot_p90_s tpot_p99_s icl_p50_s icl_p90_s icl_p99_s e2e_p50_s e2e_p90_s e2e_p99_s response_p50_s response_p90_s
response_p99_s goodput_rate in_flight_mean bundled_ratio running_mean running_max waiting_mean kv_usage_mean kv_usage_max
prefix_hit_ratio preemptions queue_time_mean_s prefill_time_mean_s decode_time_mean_s gpu_util_mean sm_active_mean client_cpu_max
client_lag_p99_s turnaround_p99_s reconciled verdict limit valid invalid_reason
"""


@pytest.mark.parametrize(
    ("heading", "schema"),
    [("requests/", REQUESTS), ("clients/", CLIENTS), ("server/", SERVER), ("levels.parquet", LEVELS)],
    ids=["requests", "clients", "server", "levels"],
)
def test_every_column_is_explained_and_no_other(heading: str, schema: pa.Schema) -> None:
    """docs/metrics.md has a row for each column of each file, and none for a column that is not there."""
    section = METRICS.read_text().split(f"## Columns of `{heading}`")[1].split("\n## ")[0]
    first_cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    explained = re.findall(r"`(\w+)`", " ".join(first_cells))
    assert sorted(explained) == sorted(schema.names)


def test_the_contracts_request_columns_have_their_types() -> None:
    """Programs outside read these by name and type."""
    for entry in CONTRACT_REQUESTS.replace("\n", " ").split(","):
        name, kind = entry.split()
        assert str(REQUESTS.field(name).type) == kind
    assert REQUESTS.field("chunk_us").type == pa.list_(pa.uint32())
    assert REQUESTS.field("chunk_tokens").type == pa.list_(pa.uint16())


def test_the_contracts_level_columns_are_there() -> None:
    """levels.parquet has at least these."""
    assert set(CONTRACT_LEVELS.split()) <= set(LEVELS.names)


def test_records_speak_in_columns() -> None:
    """Each attribute of a record has the name of its column."""
    assert set(RequestRecord.__dataclass_fields__) <= set(REQUESTS.names)


def test_no_column_is_called_like_a_folder_key() -> None:
    """Folders are not key=value, so that no reader makes up a second column of the same name."""
    assert all("=" not in name for name in (*REQUESTS.names, *CLIENTS.names, *SERVER.names, *LEVELS.names))
