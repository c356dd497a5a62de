"""Small tables of the dataset, for the tests of what writes and reads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from distbench.store.schema import CLIENTS, REQUESTS, SERVER

_FIXED: dict[str, Any] = {
    "level": 0,
    "client": 0,
    "connection": 0,
    "index": 0,
    "request_id": 0,
    "phase": "measured",
    "target": "http://h:1/v1",
    "outcome": "ok",
    "user_messages": 1,
    "prompt_id": 0,
    "bytes_received": 0,
    "reads": 0,
    "attempts": 1,
    "reconnects": 0,
}


def requests_table(
    num_rows: int, *, level: int = 0, client: int = 0, first: int = 0, **same: Any
) -> pa.Table:
    """Return requests that differ in index and id; every column that is not given is null."""
    rows = [
        {**_FIXED, "level": level, "client": client, "index": i, "request_id": level * 10**12 + i, **same}
        for i in range(first, first + num_rows)
    ]
    return pa.Table.from_pylist(rows, schema=REQUESTS)


def clients_table(times_ns: list[int], *, client: int = 0) -> pa.Table:
    """Return one health sample per time."""
    fixed = {f.name: 0 for f in CLIENTS if not f.nullable}
    return pa.Table.from_pylist([{**fixed, "client": client, "time_ns": t} for t in times_ns], schema=CLIENTS)


def server_table(values: Sequence[float | None], *, first_ns: int = 0) -> pa.Table:
    """Return one series of one target, a value each ns."""
    labels = [("engine", "0")]
    rows = [
        {
            "time_ns": i,
            "target": "http://h:1",
            "name": "vllm:num_requests_running",
            "labels": labels,
            "value": v,
        }
        for i, v in enumerate(values, first_ns)
    ]
    return pa.Table.from_pylist(rows, schema=SERVER)
