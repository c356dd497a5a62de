"""A run directory opens in our reader and, as it is, in the tools that people use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from distbench.errors import EXIT_USAGE, StoreError
from distbench.store.reader import open_run
from distbench.store.recorder import Recorder
from distbench.store.rundir import RunDir
from distbench.store.runinfo import RunInfo
from distbench.store.schema import CLIENTS, LEVELS, REQUESTS, SCHEMA_VERSION, SERVER
from distbench.store.storage import without_credentials
from tests.store.tables import requests_table, server_table


@pytest.fixture(scope="module")
def run_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """
    A run of three parts: level 0 of two clients, one of them with nothing but nulls where null is allowed, and level 3.

    Beside them lies the temporary file of a write that was killed.
    """
    path = tmp_path_factory.mktemp("reader") / "run"
    run = RunDir.create(path)
    run.write_info(RunInfo(status="incomplete", plan={"command": "run", "seed": 0}))
    recorder = Recorder(run)
    recorder.add_requests(requests_table(2, level=0, client=0), level=0, client=0)
    full = requests_table(
        3, level=0, client=1, first=2, sent_ns=10, http_status=200, chunk_us=[1, 1, 5], chunk_tokens=[1, 2, 1]
    )
    recorder.add_requests(full, level=0, client=1)
    recorder.add_requests(requests_table(4, level=3, client=0, chunk_us=[]), level=3, client=0)
    recorder.add_server(server_table([1.0, 2.0, None]))
    recorder.close()
    (path / "requests" / "level-0003" / ".client-0000-00001.parquet.tmp").write_bytes(b"PAR1half")
    return path


def test_rows_are_read_by_level_and_column(run_path: Path) -> None:
    """Levels and columns are read alone; types are the contract's even where a part holds only nulls."""
    data = open_run(run_path)
    assert data.info.status == "incomplete"
    assert data.level_numbers() == [0, 3]
    assert data.requests().num_rows == 9
    assert data.requests().schema == REQUESTS
    level = data.requests(level=0, columns=["index", "chunk_us"])
    assert level.schema.names == ["index", "chunk_us"]
    assert level.sort_by("index")["chunk_us"].to_pylist() == [None, None, [1, 1, 5], [1, 1, 5], [1, 1, 5]]
    assert sum(batch.num_rows for batch in data.request_batches(columns=["level"])) == 9
    assert data.plan() == {"command": "run", "seed": 0}
    assert data.skipped == {}


def test_what_was_not_written_yet_is_empty_with_its_schema(run_path: Path) -> None:
    """A run that was killed early has no samples, levels or findings; each is empty in its type."""
    data = open_run(run_path)
    assert data.clients().schema == CLIENTS
    assert data.levels().schema == LEVELS
    assert data.requests(level=17).schema == REQUESTS
    assert data.findings() is None
    assert data.server().schema == SERVER


def test_server_rows_are_read_by_time(tmp_path: Path) -> None:
    """Only the scrapes between two times come, both included, and parts outside are not opened for their rows."""
    run = RunDir.create(tmp_path / "run")
    run.write_info(RunInfo())
    recorder = Recorder(run)
    for first in (0, 10, 20):
        recorder.add_server(server_table([1.0] * 5, first_ns=first))
        recorder.flush()
    data = open_run(run.uri)
    assert data.server().num_rows == 15
    assert data.server(between_ns=(4, 11))["time_ns"].to_pylist() == [4, 10, 11]
    assert data.server(between_ns=(30, 40)).schema == SERVER
    table = data.requests(coded=True)
    assert pa.types.is_dictionary(table.schema.field("outcome").type)


@pytest.mark.parametrize(
    "damage",
    [
        lambda b: b[: len(b) // 2],
        lambda b: b"",
        lambda b: b[:-4] + b"XXXX",
        lambda b: b[:4] + bytes(len(b) - 60) + b[-56:],
    ],
    ids=["cut", "empty", "no-footer", "zeroed"],
)
def test_a_torn_part_is_skipped_by_name(tmp_path: Path, damage: object) -> None:
    """The parts beside a torn one are read; the torn one is named."""
    run = RunDir.create(tmp_path / "run")
    run.write_info(RunInfo())
    recorder = Recorder(run, max_rows=2)
    for first in (0, 2, 4):
        recorder.add_requests(requests_table(2, first=first), level=0, client=0)
    torn = tmp_path / "run" / "requests" / "level-0000" / "client-0000-00001.parquet"
    assert callable(damage)
    torn.write_bytes(damage(torn.read_bytes()))
    data = open_run(tmp_path / "run")
    indices: list[Any] = data.requests()["index"].to_pylist()
    assert sorted(indices) == [0, 1, 4, 5]
    assert list(data.skipped) == ["requests/level-0000/client-0000-00001.parquet"]
    assert all(reason for reason in data.skipped.values())


def test_what_is_no_run_directory_is_refused(tmp_path: Path) -> None:
    """A wrong path is a StoreError with exit code 2 and one sentence."""
    with pytest.raises(StoreError, match="is not a run directory: it does not exist") as caught:
        open_run(tmp_path / "nowhere")
    assert caught.value.exit_code == EXIT_USAGE
    with pytest.raises(StoreError, match=r"is not a run directory: it holds no run\.json"):
        open_run(tmp_path)
    (tmp_path / "run.json").write_text(f'{{"schema": {SCHEMA_VERSION + 1}, "status": "complete"}}')
    with pytest.raises(StoreError, match="schema version 2"):
        open_run(tmp_path)
    with pytest.raises(StoreError, match="cannot open odd://h/x"):
        open_run("odd://user:pass@h/x?secret=1")


def test_a_file_uri_is_the_folder(run_path: Path) -> None:
    """file:// names the same directory as its path."""
    assert open_run(f"file://{run_path}").requests(level=3).num_rows == 4


def test_a_column_that_an_older_writer_did_not_have_is_null(tmp_path: Path) -> None:
    """Columns beyond the contract may be missing in older runs; readers get nulls of the right type."""
    run = RunDir.create(tmp_path / "run")
    run.write_info(RunInfo())
    old = requests_table(2).drop_columns(["server_ttft_us"])
    (tmp_path / "run" / "requests" / "level-0000").mkdir()
    pq.write_table(old, tmp_path / "run" / "requests" / "level-0000" / "client-0000-00000.parquet")
    table = open_run(tmp_path / "run").requests()
    assert table.schema == REQUESTS
    assert table["server_ttft_us"].to_pylist() == [None, None]


def test_credentials_in_a_uri_are_not_shown() -> None:
    """What a user is shown of a URI has neither keys nor query."""
    assert without_credentials("s3://ak:sk@bucket/run?endpoint_override=h:1") == "s3://bucket/run"
    assert without_credentials("s3://bucket/a@b") == "s3://bucket/a@b"


def test_pandas_opens_the_folder_as_it_is(run_path: Path) -> None:
    """pandas.read_parquet(RUN/requests) has every row and no column made of folder names."""
    frame = pd.read_parquet(run_path / "requests")
    assert len(frame) == 9
    assert list(frame.columns) == REQUESTS.names
    assert sorted(frame["level"].unique()) == [0, 3]
    arrow = pd.read_parquet(run_path / "requests", dtype_backend="pyarrow")
    assert int(arrow["http_status"].sum()) == 600
    assert len(pd.read_parquet(run_path / "server")) == 3


def test_pyarrow_dataset_opens_the_folder_as_it_is(run_path: Path) -> None:
    """pyarrow.dataset finds one schema over all parts, the contract's."""
    dataset = ds.dataset(run_path / "requests", format="parquet")
    assert dataset.schema.equals(REQUESTS)
    assert dataset.count_rows() == 9
    assert dataset.to_table(filter=ds.field("level") == 3).num_rows == 4


def test_duckdb_opens_the_folder_as_it_is(run_path: Path) -> None:
    """DuckDB reads the glob, lists included, and needs no union of differing types."""
    parts = f"{run_path}/requests/*/*.parquet"
    with duckdb.connect() as connection:
        row = connection.execute(
            "select count(*), sum(len(chunk_us)), max(list_max(chunk_tokens)), min(http_status) "
            f"from read_parquet('{parts}')"
        ).fetchone()
        assert row == (9, 9, 2, 200)
        types = dict(
            connection.execute(
                f"select column_name, column_type from (describe select * from read_parquet('{parts}'))"
            ).fetchall()
        )
        server = connection.execute(
            f"select labels['engine'] from read_parquet('{run_path}/server/*.parquet') limit 1"
        ).fetchone()
    assert types["chunk_us"] == "UINTEGER[]"
    assert types["scheduled_ns"] == "BIGINT"
    assert types["error_text"] == "VARCHAR"
    assert server == ("0",)


def test_polars_opens_the_folder_as_it_is(run_path: Path) -> None:
    """Polars scans the folder lazily with the contract's types."""
    scan = pl.scan_parquet(run_path / "requests" / "*" / "*.parquet")
    schema = scan.collect_schema()
    assert schema.names() == REQUESTS.names
    assert schema["chunk_us"] == pl.List(pl.UInt32)
    assert schema["scheduled_ns"] == pl.Int64
    frame = scan.select(pl.len().alias("n"), pl.col("chunk_us").list.len().sum().alias("chunks")).collect()
    assert frame.to_dicts() == [{"n": 9, "chunks": 9}]


def test_every_part_has_exactly_the_schema(run_path: Path) -> None:
    """Not even a part of nulls only falls back to another type."""
    for part in (run_path / "requests").rglob("client-*.parquet"):
        schema: pa.Schema = pq.read_schema(part)
        assert schema.equals(REQUESTS)
