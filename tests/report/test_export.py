"""Exports: every row, list columns readable, vLLM's own keys, and no half files."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from distbench.cli import export as cli_export
from distbench.errors import PlanError
from distbench.report import export as exports
from distbench.report.vllm_json import vllm_json
from distbench.store.reader import open_run
from distbench.store.schema import LEVELS, REQUESTS, SERVER

DATA = Path(__file__).resolve().parents[1] / "data" / "vllm_bench"


def _export(run: Path, form: str, **more: Any) -> bytes:
    file = io.BytesIO()
    exports.export(open_run(run), form, file, **more)
    assert not file.closed
    return file.getvalue()


def test_parquet_holds_all_rows_in_the_schema(capacity_run: Path) -> None:
    """One Parquet file has every request of the run, in the schema of the run directory."""
    table = pq.read_table(io.BytesIO(_export(capacity_run, "parquet")))

    assert table.schema.equals(REQUESTS)
    assert table.num_rows == open_run(capacity_run).requests().num_rows


def test_csv_holds_lists_as_json_text(capacity_run: Path) -> None:
    """Chunk times are a JSON list in their cell; null is an empty cell."""
    rows = list(csv.DictReader(io.StringIO(_export(capacity_run, "csv", level=1).decode())))
    expected = open_run(capacity_run).requests(1).to_pylist()

    assert [int(row["request_id"]) for row in rows] == [row["request_id"] for row in expected]
    assert json.loads(rows[0]["chunk_us"]) == expected[0]["chunk_us"]
    assert rows[0]["scheduled_ns"] == ""


def test_jsonl_holds_one_object_a_row(capacity_run: Path) -> None:
    """Each line is one request with its lists as lists and null for what did not happen."""
    lines = _export(capacity_run, "jsonl", level=0).splitlines()

    assert [json.loads(line) for line in lines] == open_run(capacity_run).requests(0).to_pylist()


@pytest.mark.parametrize(("table", "schema"), [("levels", LEVELS), ("server", SERVER)])
def test_other_tables_export_too(capacity_run: Path, table: str, schema: pa.Schema) -> None:
    """Levels and server rows go the same way; labels are an object."""
    rows = [json.loads(line) for line in _export(capacity_run, "jsonl", table=table).splitlines()]
    texts = list(csv.DictReader(io.StringIO(_export(capacity_run, "csv", table=table).decode())))

    assert list(rows[0]) == list(texts[0]) == schema.names
    if table == "server":
        assert rows[0]["labels"] == json.loads(texts[0]["labels"]) == {"engine": "0", "model_name": "tiny"}


@pytest.mark.parametrize("name", ["chat_random_detailed", "overload_503"])
def test_vllm_json_has_vllms_keys_and_types(capacity_run: Path, name: str) -> None:
    """The keys are those of `vllm bench serve`, in its order, and so are the types."""
    expected: dict[str, str] = json.loads((DATA / f"{name}.keys.json").read_text())
    made = vllm_json(open_run(capacity_run))

    assert list(made) == list(expected)
    assert {key: type(value).__name__ for key, value in made.items()} == expected


def test_vllm_json_sums_equal_its_lists(capacity_run: Path) -> None:
    """Sums follow from the lists as vLLM makes them: counts, totals, mean and p99 in ms."""
    made = vllm_json(open_run(capacity_run), level=1)
    row = open_run(capacity_run).levels().to_pylist()[1]
    tpots = [
        (e - t) / (n - 1)
        for e, t, n in zip(made["latencies"], made["ttfts"], made["output_lens"], strict=True)
    ]

    assert made["completed"] == row["requests_ok"] == len(made["ttfts"])
    assert made["total_output_tokens"] == sum(made["output_lens"]) == 160 * 32
    assert made["mean_ttft_ms"] == pytest.approx(1000 * np.mean(made["ttfts"]))
    assert made["p99_ttft_ms"] == pytest.approx(1000 * np.percentile(made["ttfts"], 99))
    assert made["mean_tpot_ms"] == pytest.approx(1000 * np.mean(tpots))
    assert made["median_itl_ms"] == pytest.approx(1000 * np.median(np.concatenate(made["itls"])))
    assert made["output_throughput"] == pytest.approx(160 * 32 / row["whole_s"])
    assert {len(gaps) for gaps in made["itls"]} == {31}


def test_vllm_json_takes_the_peak_unless_told(capacity_run: Path) -> None:
    """Without a level it is the first visit of the peak."""
    run = open_run(capacity_run)
    peak = (run.findings() or {})["peak"]["connections"]

    assert vllm_json(run)["max_concurrency"] == peak
    assert vllm_json(run, level=0)["max_concurrency"] == 1


def test_vllm_json_of_failures_has_null_and_reasons(failed_run: Path) -> None:
    """Where all failed, sums are null and not zero, and each error is there."""
    made = vllm_json(open_run(failed_run))

    assert (made["completed"], made["failed"]) == (0, 40)
    assert made["mean_ttft_ms"] is None
    assert made["p99_itl_ms"] is None
    assert all("owned" in error for error in made["errors"])
    json.dumps(made, allow_nan=False)


def test_unknown_level_is_refused(capacity_run: Path) -> None:
    """A level that the run does not have is named with those that it has."""
    for form in ("csv", "vllm-json"):
        with pytest.raises(PlanError, match="level 99"):
            _export(capacity_run, form, level=99)


def test_cli_offers_what_the_export_can() -> None:
    """The command's choices, which are written down twice to keep its help light, are the same."""
    assert cli_export.FORMATS == exports.FORMATS
    assert tuple(exports.TABLES) == cli_export.TABLES
