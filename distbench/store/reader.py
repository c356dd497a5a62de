"""
Reading a run directory, finished or not (floor F2).

Whatever was written whole is read; a part that is torn or has no footer is left out and named in ``skipped``. Nothing is loaded
before it is asked for.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from distbench.errors import StoreError
from distbench.store.jsonio import loads
from distbench.store.runinfo import RunInfo, info_from_json
from distbench.store.schema import CLIENTS, LEVELS, REQUESTS, SERVER
from distbench.store.storage import Storage, open_storage

_LEVEL = re.compile(r"^requests/level-(\d+)/")
_READERS = 4


def open_run(path_or_uri: str | os.PathLike[str]) -> RunData:
    """
    Open a run directory for reading.

    Raises:
        StoreError: there is none, it is of another schema version, or its run.json cannot be read.
    """
    return read_run(open_storage(path_or_uri))


def read_run(storage: Storage) -> RunData:
    """Open the run in a storage for reading; raises as open_run. A URI that is shown lacks what it takes to open it again."""
    if not storage.exists("run.json"):
        what = "holds no run.json" if storage.exists("") else "does not exist"
        raise StoreError(f"{storage.uri} is not a run directory: it {what}")
    info = info_from_json(loads(storage.get("run.json"), f"{storage.uri}/run.json"), storage.uri)
    return RunData(storage, info)


class RunData:
    """
    One run, as far as it was written.

    Attributes:
        info: run.json.
        skipped: Part file -> why it was left out; filled by what was read so far.
    """

    def __init__(self, storage: Storage, info: RunInfo) -> None:
        self.info = info
        self.skipped: dict[str, str] = {}
        self._storage = storage

    @property
    def uri(self) -> str:
        """Return the path or URI as a user may be shown it."""
        return self._storage.uri

    def plan(self) -> dict[str, Any]:
        """
        Return the table of plan.toml; that of run.json where the file is not there.

        Raises:
            StoreError: plan.toml is no TOML.
        """
        if not self._storage.exists("plan.toml"):
            return dict(self.info.plan)
        try:
            return tomllib.loads(self._storage.get("plan.toml").decode())
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise StoreError(f"{self.uri}/plan.toml is not TOML: {error}") from None

    def level_numbers(self) -> list[int]:
        """Return the levels that have rows, ascending."""
        found = (_LEVEL.match(name) for name in self._storage.names("requests"))
        return sorted({int(match.group(1)) for match in found if match})

    def requests(
        self, level: int | None = None, columns: Sequence[str] | None = None, *, coded: bool = False
    ) -> pa.Table:
        """
        Return requests.

        Args:
            level: Only this one; None: all.
            columns: Only these; None: all.
            coded: Texts as dictionaries, which takes a fraction of the time and memory.
        """
        return self._table(self._requests_folder(level), _coded(REQUESTS) if coded else REQUESTS, columns)

    def request_batches(
        self, level: int | None = None, columns: Sequence[str] | None = None, *, coded: bool = False
    ) -> Iterator[pa.Table]:
        """Yield requests one part after the other, for what must not be in memory all at once; arguments as of requests."""
        schema = _subset(_coded(REQUESTS) if coded else REQUESTS, columns)
        for name in self._parts(self._requests_folder(level)):
            table = self._read_part(name, schema)
            if table is not None:
                yield table

    def clients(self) -> pa.Table:
        """Return the health samples of all clients."""
        return self._table("clients", CLIENTS, None)

    def server(self, *, between_ns: tuple[int, int] | None = None) -> pa.Table:
        """
        Return the scraped series of all targets.

        Args:
            between_ns: Only what was scraped from the one time to the other, both included; other parts are not even read.
        """
        if between_ns is None:
            return self._table("server", SERVER, None)
        start_ns, end_ns = (pa.scalar(t, pa.int64()) for t in between_ns)
        table = self._table("server", SERVER, None, lambda file: _may_hold(file, "time_ns", between_ns))
        times = table["time_ns"]
        return table.filter(pc.and_(pc.greater_equal(times, start_ns), pc.less_equal(times, end_ns)))

    def levels(self) -> pa.Table:
        """Return levels.parquet; empty where the run did not come so far."""
        if not self._storage.exists("levels.parquet"):
            return LEVELS.empty_table()
        table = self._read_part("levels.parquet", LEVELS)
        return LEVELS.empty_table() if table is None else table

    def findings(self) -> dict[str, Any] | None:
        """
        Return findings.json; None where there is none.

        Raises:
            StoreError: it is no JSON.
        """
        if not self._storage.exists("findings.json"):
            return None
        return loads(self._storage.get("findings.json"), f"{self.uri}/findings.json")

    def _requests_folder(self, level: int | None) -> str:
        return "requests" if level is None else f"requests/level-{level:04d}"

    def _parts(self, folder: str) -> list[str]:
        return [name for name in self._storage.names(folder) if name.endswith(".parquet")]

    def _table(
        self,
        folder: str,
        schema: pa.Schema,
        columns: Sequence[str] | None,
        wants: Callable[[pq.ParquetFile], bool] = lambda _: True,
    ) -> pa.Table:
        wanted = _subset(schema, columns)
        with ThreadPoolExecutor(_READERS) as pool:
            read = pool.map(lambda name: self._read_part(name, wanted, wants), self._parts(folder))
            tables = [table for table in read if table is not None]
        return pa.concat_tables(tables) if tables else wanted.empty_table()

    def _read_part(
        self, name: str, schema: pa.Schema, wants: Callable[[pq.ParquetFile], bool] = lambda _: True
    ) -> pa.Table | None:
        try:
            with self._storage.open(name) as source:
                coded = [f.name for f in schema if pa.types.is_dictionary(f.type)]
                file = pq.ParquetFile(source, read_dictionary=coded)
                if not wants(file):
                    return None
                present = [column for column in schema.names if column in file.schema_arrow.names]
                table = file.read(columns=present, use_threads=False)
            return _conform(table, schema)
        except (OSError, ValueError, pa.ArrowException) as error:
            self.skipped[name] = str(error).splitlines()[0] if str(error) else type(error).__name__
            return None


def _subset(schema: pa.Schema, columns: Sequence[str] | None) -> pa.Schema:
    return schema if columns is None else pa.schema([schema.field(name) for name in columns])


def _may_hold(file: pq.ParquetFile, column: str, between: tuple[int, int]) -> bool:
    """Tell by its statistics whether a part can have a value of a column from the one to the other; True where it has none."""
    at = file.schema_arrow.names.index(column)
    for group in range(file.metadata.num_row_groups):
        found: Any = file.metadata.row_group(group).column(at).statistics
        if found is None or not found.has_min_max or (found.min <= between[1] and found.max >= between[0]):
            return True
    return False


def _coded(schema: pa.Schema) -> pa.Schema:
    """Return schema with its texts as dictionaries."""
    return pa.schema(
        [
            pa.field(f.name, pa.dictionary(pa.int32(), pa.string()), f.nullable)
            if pa.types.is_string(f.type)
            else f
            for f in schema
        ]
    )


def _conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return table in schema; a column that an older writer did not have is null."""
    if table.schema.equals(schema):
        return table
    columns = [
        table[field.name].cast(field.type)
        if field.name in table.schema.names
        else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)
