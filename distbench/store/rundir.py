"""
The run directory: made for one run alone, its small files written whole (floor F2).

The part files of the dataset are the recorder's (recorder.py); reading is reader.py's.
"""

from __future__ import annotations

import datetime
import os
import secrets
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import tomli_w

from distbench.store.jsonio import clean, dumps
from distbench.store.runinfo import RunInfo
from distbench.store.schema import LEVELS
from distbench.store.storage import Storage, open_storage, without_credentials

DEFAULT_PARENT = "runs"


def new_run_name(now: datetime.datetime | None = None) -> str:
    """Return a name such as 20261129T200131Z-5f0c91ab; two of the same second differ by their random part."""
    at = datetime.datetime.now(datetime.UTC) if now is None else now.astimezone(datetime.UTC)
    return f"{at:%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}"


class RunDir:
    """The directory of a run that is being written."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    @property
    def uri(self) -> str:
        """Return the path or URI as a user may be shown it."""
        return self.storage.uri

    @classmethod
    def create(cls, output: str | os.PathLike[str] | None = None) -> RunDir:
        """
        Create the directory for a run, readable by its owner only.

        Args:
            output: Path or URI, absent or empty; None: runs/<utc>-<hex> below the working directory.

        Raises:
            StoreError: it holds something, or cannot be written to; one sentence that says which.
        """
        storage = open_storage(f"{DEFAULT_PARENT}/{new_run_name()}" if output is None else output)
        storage.create_root()
        return cls(storage)

    @classmethod
    def reopen(cls, path_or_uri: str | os.PathLike[str]) -> RunDir:
        """Return an existing run directory to go on writing; reader.open_run checks what is in it."""
        return cls(open_storage(path_or_uri))

    def discard(self) -> None:
        """Remove the directory where no file was written to it, so that a run that never started leaves nothing."""
        self.storage.discard_root()

    def write_info(self, info: RunInfo) -> None:
        """Write run.json. Raises StoreError, as all writers here."""
        values = info.to_json()
        self.storage.put("run.json", dumps({**values, "plan": _without_keys(info.plan)}))

    def write_plan(self, table: Mapping[str, Any]) -> None:
        """Write plan.toml; values at None are left out, TOML has no null."""
        present = {key: value for key, value in clean(_without_keys(table)).items() if value is not None}
        self.storage.put("plan.toml", tomli_w.dumps(present).encode("utf-8", "replace"))

    def write_findings(self, findings: Mapping[str, Any]) -> None:
        """Write findings.json."""
        self.storage.put("findings.json", dumps(findings))

    def write_levels(self, table: pa.Table) -> None:
        """Write levels.parquet from a table in the schema LEVELS."""
        self.storage.put("levels.parquet", to_parquet(table.cast(LEVELS)))

    def write_file(self, name: str, data: bytes) -> None:
        """Write another file of the directory, such as report.html."""
        self.storage.put(name, data)


def _without_keys(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return a plan without the access keys that the URI of an object store may bear; all else is masked where it is made."""
    output = plan.get("output")
    return {**plan, "output": without_credentials(output)} if isinstance(output, str) else dict(plan)


def to_parquet(table: pa.Table) -> pa.Buffer:
    """
    Return a table as the bytes of one Parquet file.

    Zstandard; dictionaries for texts only, since stamps and ids hardly repeat and a dictionary of them is wasted work.
    """
    texts: list[str] = []
    for field in table.schema:
        if pa.types.is_string(field.type):
            texts.append(field.name)
        elif pa.types.is_map(field.type):
            texts += [f"{field.name}.key_value.key", f"{field.name}.key_value.value"]
    sink = pa.BufferOutputStream()
    # The stubs know only the bool form of use_dictionary.
    pq.write_table(table, sink, compression="zstd", use_dictionary=texts)  # type: ignore[arg-type]
    return sink.getvalue()
