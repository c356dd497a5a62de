"""
The recorder: tables in, part files out, while the run goes on (floor F2).

Rows wait in memory for a few seconds at most and are then written as whole files, so that whatever kills the driver costs the last
seconds only. Every file has one explicit schema. Not thread-safe: the driver's loop owns it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pyarrow as pa

from distbench.errors import StoreError
from distbench.store.rundir import RunDir, to_parquet
from distbench.store.schema import CLIENTS, REQUESTS, SERVER

# A client keeps rows for up to 2 s; with these the promise "on disk within 5 s" holds even for a late tick.
FLUSH_AFTER_S = 2.5
MAX_ROWS = 100_000
MAX_BYTES = 64 * 2**20


class _Part:
    """Tables that will be one file."""

    __slots__ = ("num_bytes", "num_rows", "opened_s", "tables")

    def __init__(self, opened_s: float) -> None:
        self.opened_s = opened_s
        self.tables: list[pa.Table] = []
        self.num_rows = 0
        self.num_bytes = 0

    def add(self, table: pa.Table) -> None:
        self.tables.append(table)
        self.num_rows += table.num_rows
        self.num_bytes += table.nbytes


class Recorder:
    """
    Writes the dataset of one run.

    Args:
        run: The run directory; part numbers go on after those that are there already.
        flush_after_s: tick() writes a part whose first row is older.
        max_rows, max_bytes: A part of this size is written at once.
        now_s: Monotonic seconds.
    """

    def __init__(
        self,
        run: RunDir,
        *,
        flush_after_s: float = FLUSH_AFTER_S,
        max_rows: int = MAX_ROWS,
        max_bytes: int = MAX_BYTES,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._storage = run.storage
        self._flush_after_s = flush_after_s
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self._now_s = now_s
        self._open: dict[str, _Part] = {}
        self._next_number = self._numbers_in_use()
        self._rows_written = 0

    @property
    def rows_written(self) -> int:
        """Return the rows of all kinds that are on disk."""
        return self._rows_written

    @property
    def rows_waiting(self) -> int:
        """Return the rows that a kill would lose."""
        return sum(part.num_rows for part in self._open.values())

    def add_requests(self, table: pa.Table, *, level: int, client: int) -> None:
        """
        Take finished requests of one client and level, in the schema REQUESTS; rows that the driver makes go the same way.

        Raises:
            ValueError: another schema.
            StoreError: a part was due and could not be written; its rows are kept and tried again.
        """
        self._add(f"requests/level-{level:04d}/client-{client:04d}", table, REQUESTS)

    def add_clients(self, table: pa.Table, *, client: int) -> None:
        """Take health samples of one client, in the schema CLIENTS; raises as add_requests."""
        self._add(f"clients/client-{client:04d}", table, CLIENTS)

    def add_server(self, table: pa.Table) -> None:
        """Take scraped series, in the schema SERVER; raises as add_requests."""
        self._add("server/server", table, SERVER)

    def tick(self, now_s: float | None = None) -> int:
        """
        Write the parts whose time has come; call it at least once a second.

        Args:
            now_s: The time on the recorder's clock; None: now.

        Returns:
            Number of files written.

        Raises:
            StoreError: a part could not be written; the others were.
        """
        now = self._now_s() if now_s is None else now_s
        return self._write_all(
            [p for p, part in self._open.items() if now - part.opened_s >= self._flush_after_s]
        )

    def flush(self) -> int:
        """Write everything now; returns and raises as tick."""
        return self._write_all(list(self._open))

    def close(self) -> None:
        """Write everything; the recorder may be used again, and a second call has nothing to do."""
        self.flush()

    def _add(self, prefix: str, table: pa.Table, schema: pa.Schema) -> None:
        if not table.schema.equals(schema):
            raise ValueError(f"a table for {prefix} has another schema than the run directory's")
        if table.num_rows == 0:
            return
        part = self._open.get(prefix)
        if part is None:
            part = self._open[prefix] = _Part(self._now_s())
        part.add(table)
        if part.num_rows >= self._max_rows or part.num_bytes >= self._max_bytes:
            self._write(prefix)

    def _write_all(self, prefixes: list[str]) -> int:
        problems: list[StoreError] = []
        for prefix in prefixes:
            try:
                self._write(prefix)
            except StoreError as error:
                problems.append(error)
        if problems:
            raise problems[0]
        return len(prefixes)

    def _write(self, prefix: str) -> None:
        part = self._open[prefix]
        number = self._next_number.get(prefix, 0)
        data = to_parquet(pa.concat_tables(part.tables).combine_chunks())
        self._storage.put(f"{prefix}-{number:05d}.parquet", data)
        self._next_number[prefix] = number + 1
        self._rows_written += part.num_rows
        del self._open[prefix]

    def _numbers_in_use(self) -> dict[str, int]:
        used: dict[str, int] = {}
        for folder in ("requests", "clients", "server"):
            for name in self._storage.names(folder):
                prefix, _, number = name.removesuffix(".parquet").rpartition("-")
                if number.isdigit():
                    used[prefix] = max(used.get(prefix, 0), int(number) + 1)
        return used
