"""
What the mock server saw, joined with what a client stamped, by request id on the one monotonic clock of this machine.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.dataset as ds

from distbench.analysis.arrays import flat_lists, integers, numbers
from tests.support.cmock import TrueRequest

Ints = npt.NDArray[np.int64]

_CLIENT_MAGIC = 0x434C4E5430303031
_CLIENT_FIELDS = 4
_NS_PER_US = 1_000
_NS_PER_MS = 1e6


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerView:
    """
    A level as the server saw it, over the window in which all connections were at work.

    Attributes:
        window_s: From the first moment at which as many answers as connections had ended, to the last request's arrival.
        in_flight: Mean number of requests being answered.
        tokens_per_s: Tokens sent.
    """

    window_s: float
    in_flight: float
    tokens_per_s: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class StampErrors:
    """
    How far a client's stamps of tokens lie behind the server's sending them, ms.

    Attributes:
        p50_ms, p99_ms: Of the tokens that came alone in their read.
        bundled_ratio: Share of the tokens that shared a read with another one.
        num_tokens: Tokens compared, bundled ones included.
    """

    p50_ms: float
    p99_ms: float
    bundled_ratio: float
    num_tokens: int


def server_view(truth: Mapping[int, TrueRequest] | list[TrueRequest], connections: int) -> ServerView | None:
    """Return the server's view; None where the load was too short for a window."""
    requests = list(truth.values()) if isinstance(truth, Mapping) else truth
    read = np.array([request.read_ns for request in requests], np.int64)
    ended = np.array([request.end_ns for request in requests], np.int64)
    if len(requests) < 2 * connections:
        return None
    start, stop = int(np.sort(ended)[connections - 1]), int(read.max())
    if stop <= start:
        return None
    inside = np.clip(np.minimum(ended, stop) - np.maximum(read, start), 0, None)
    sent = np.concatenate([request.token_ns for request in requests])
    window_s = (stop - start) / 1e9
    return ServerView(
        window_s=window_s,
        in_flight=float(inside.sum()) / (stop - start),
        tokens_per_s=float(((sent >= start) & (sent < stop)).sum()) / window_s,
    )


def stamp_errors(truth: Mapping[int, TrueRequest], stamped: Mapping[int, Ints]) -> StampErrors | None:
    """
    Compare a client's arrival times with the truth.

    Args:
        truth: Of the server, by request id.
        stamped: Arrival of each token by request id, ns on the same clock; answers with another number of tokens than the server
            sent are left out.

    Returns:
        None where nothing can be compared.
    """
    errors, alone = [np.zeros(0, np.int64)], [np.zeros(0, np.bool_)]
    for request_id, arrived in stamped.items():
        true = truth.get(request_id)
        if true is None or len(true.token_ns) != len(arrived) or not len(arrived):
            continue
        errors.append(arrived - true.token_ns)
        alone.append(came_alone(arrived))
    every, unbundled = np.concatenate(errors), np.concatenate(alone)
    if not unbundled.any():
        return None
    p50, p99 = np.quantile(every[unbundled], [0.5, 0.99]) / _NS_PER_MS
    return StampErrors(
        p50_ms=float(p50),
        p99_ms=float(p99),
        bundled_ratio=float(1 - unbundled.mean()),
        num_tokens=len(every),
    )


def came_alone(arrived: Ints) -> npt.NDArray[np.bool_]:
    """Tell for each token of one answer whether its stamp is its own: neither neighbour bears the same."""
    same = np.diff(arrived) == 0
    alone = np.ones(len(arrived), np.bool_)
    alone[1:] &= ~same
    alone[:-1] &= ~same
    return alone


def stamps_of_rows(folder: Path, epoch_ns: int) -> dict[int, Ints]:
    """
    Return arrival times by request id from the rows of a client.

    Args:
        folder: Of Parquet files in the schema of requests.
        epoch_ns: The epoch of their stamps on the monotonic clock.
    """
    columns = ["request_id", "sent_ns", "chunk_us"]
    table = ds.dataset(str(folder), format="parquet").to_table(columns=columns)
    return {
        request_id: sent_ns + epoch_ns + us.astype(np.int64) * _NS_PER_US
        for request_id, sent_ns, us in _rows(table)
    }


def stamps_of_log(path: Path) -> dict[int, Ints]:
    """Return arrival times by request id from the log of the floor client, or of a baseline, which writes the same."""
    words = np.fromfile(path, dtype=np.int64)
    found = {}
    at = 0
    while at < len(words):
        magic, request_id, _, count = words[at : at + _CLIENT_FIELDS].tolist()
        if magic != _CLIENT_MAGIC:
            raise ValueError(f"{path}: no record at word {at}")
        at += _CLIENT_FIELDS
        found[request_id] = words[at : at + count]
        at += count
    return found


def log_record(request_id: int, sent_ns: int, arrived: list[int]) -> bytes:
    """Return one record of such a log."""
    count = len(arrived)
    return struct.pack(f"={_CLIENT_FIELDS + count}q", _CLIENT_MAGIC, request_id, sent_ns, count, *arrived)


def _rows(table: pa.Table) -> Iterator[tuple[int, int, Ints]]:
    values, offsets = flat_lists(table["chunk_us"])
    sent_ns = numbers(table, "sent_ns")
    for row, request_id in enumerate(integers(table, "request_id").tolist()):
        if not np.isnan(sent_ns[row]):
            yield request_id, int(sent_ns[row]), values[offsets[row] : offsets[row + 1]]
