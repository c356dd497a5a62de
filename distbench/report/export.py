"""A run as one file for other programs: Parquet, CSV, JSON lines (floor F4)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, BinaryIO

import orjson
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from distbench.analysis.outcome import run_outcome
from distbench.errors import PlanError
from distbench.report.vllm_json import vllm_json
from distbench.store.reader import RunData
from distbench.store.schema import CLIENTS, LEVELS, REQUESTS, SERVER

FORMATS = ("parquet", "csv", "jsonl", "vllm-json")
TABLES = {"requests": REQUESTS, "levels": LEVELS, "clients": CLIENTS, "server": SERVER}
BINARY_FORMATS = ("parquet",)
_JSONL_ROWS = 4096


def export(
    run: RunData, form: str, file: BinaryIO, *, table: str = "requests", level: int | None = None
) -> None:
    """
    Write one table of a run, part by part, so that a run of any size fits into memory.

    Args:
        run: The run.
        form: One of FORMATS. CSV holds lists and labels as JSON text; vllm-json is one level in the keys of vLLM's own benchmark.
        file: Opened for bytes; need not be able to seek.
        table: One of TABLES; vllm-json takes none.
        level: Only the rows of this level; None: all, and for vllm-json the peak.

    Raises:
        PlanError: table and form do not go together, or there is no such level.
        StoreError: a file of the run cannot be read.
    """
    if form == "vllm-json":
        if table != "requests":
            raise PlanError([f"vllm-json is made of requests; --table {table} does not go with it"])
        file.write(orjson.dumps(vllm_json(run, level), option=orjson.OPT_INDENT_2) + b"\n")
        return
    if level is not None and (table == "server" or level not in run.level_numbers()):
        known = ", ".join(map(str, run.level_numbers())) or "none"
        reason = (
            "server has no levels"
            if table == "server"
            else f"{run.uri} has no level {level} (it has {known})"
        )
        raise PlanError([f"--level {level}: {reason}"])
    writers = {"parquet": _write_parquet, "csv": _write_csv, "jsonl": _write_jsonl}
    writers[form](_parts(run, table, level), TABLES[table], file)


def _parts(run: RunData, table: str, level: int | None) -> Iterator[pa.Table]:
    if table == "requests":
        yield from run.request_batches(level)
        return
    readers = {"levels": lambda: run_outcome(run).table(), "clients": run.clients, "server": run.server}
    whole: pa.Table = readers[table]()
    yield whole if level is None else whole.filter(pa.compute.field("level") == level)


def _write_parquet(parts: Iterator[pa.Table], schema: pa.Schema, file: BinaryIO) -> None:
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for part in parts:
            writer.write_table(part)


def _write_csv(parts: Iterator[pa.Table], schema: pa.Schema, file: BinaryIO) -> None:
    flat = pa.schema([_flat_field(field) for field in schema])
    with pacsv.CSVWriter(file, flat) as writer:
        for part in parts:
            writer.write_table(_flattened(part, flat))


def _flat_field(field: pa.Field[Any]) -> pa.Field[Any]:
    return pa.field(field.name, pa.string()) if pa.types.is_nested(field.type) else field


def _flattened(part: pa.Table, flat: pa.Schema) -> pa.Table:
    columns = [
        _as_json_text(part[field.name])
        if pa.types.is_nested(part.schema.field(field.name).type)
        else part[field.name]
        for field in flat
    ]
    return pa.Table.from_arrays(columns, schema=flat)


def _as_json_text(column: pa.ChunkedArray[Any]) -> pa.Array[Any]:
    is_map = pa.types.is_map(column.type)
    texts = [
        None if value is None else json.dumps(dict(value) if is_map else value, separators=(",", ":"))
        for value in column.to_pylist()
    ]
    return pa.array(texts, pa.string())


def _write_jsonl(parts: Iterator[pa.Table], schema: pa.Schema, file: BinaryIO) -> None:
    maps = [field.name for field in schema if pa.types.is_map(field.type)]
    for part in parts:
        for batch in part.to_batches(max_chunksize=_JSONL_ROWS):
            rows = batch.to_pylist()
            for row in rows:
                row.update({name: dict(row[name]) for name in maps if row[name] is not None})
            file.write(b"".join(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in rows))
