"""
From finished requests to Arrow tables (floor F2).

A client keeps one compact row per finished request and turns all of them into columns when it flushes; no object per request
outlives the flush. Chunk times stay one machine array per request until then, and become one flat buffer with offsets.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from distbench.core.records import MAX_ERROR_TEXT, RequestRecord
from distbench.store.schema import REQUESTS

_STAMPS = frozenset(
    (
        "scheduled_ns",
        "first_sent_ns",
        "sent_ns",
        "first_byte_ns",
        "first_token_ns",
        "first_answer_ns",
        "last_token_ns",
        "end_ns",
    )
)
_Ints: TypeAlias = "array[int] | npt.NDArray[np.integer[Any]] | Sequence[int]"
_U32_MAX = 2**32 - 1
_U16_MAX = 2**16 - 1
_SENT = REQUESTS.names.index("sent_ns")
_CHUNK_US = REQUESTS.names.index("chunk_us")
_CHUNK_TOKENS = REQUESTS.names.index("chunk_tokens")


class RequestColumns:
    """
    Rows of finished requests on the way to one Arrow table; cheap to add to, emptied by take().

    Stamps are ns on the client's own monotonic clock until take() moves them to the run's epoch. Not thread-safe.
    """

    def __init__(self) -> None:
        self._rows: list[tuple[Any, ...]] = []
        self._num_chunks = 0

    def __len__(self) -> int:
        """Return the number of rows held."""
        return len(self._rows)

    @property
    def num_chunks(self) -> int:
        """Return the number of chunk times held; with len() the measure of when to flush."""
        return self._num_chunks

    def append(  # noqa: D417 - the other arguments are the columns of their names
        self,
        *,
        level: int,
        client: int,
        connection: int,
        index: int,
        request_id: int,
        phase: str,
        target: str,
        outcome: str,
        user_messages: int,
        prompt_id: int,
        scheduled_ns: int | None = None,
        first_sent_ns: int | None = None,
        sent_ns: int | None = None,
        first_byte_ns: int | None = None,
        first_token_ns: int | None = None,
        first_answer_ns: int | None = None,
        last_token_ns: int | None = None,
        end_ns: int | None = None,
        connect_ns: int | None = None,
        error_kind: str | None = None,
        http_status: int | None = None,
        error_text: str | None = None,
        finish_reason: str | None = None,
        prompt_tokens: int | None = None,
        completion_tokens: int | None = None,
        cached_tokens: int | None = None,
        reasoning_tokens: int | None = None,
        token_source: str | None = None,
        chunk_ns: _Ints | None = None,
        chunk_tokens: _Ints | None = None,
        bytes_received: int = 0,
        reads: int = 0,
        attempts: int = 0,
        reconnects: int = 0,
        stamp: str | None = None,
        client_lag_us: int | None = None,
        max_tokens: int | None = None,
        expected_prompt_tokens: int | None = None,
        content_encoding: str | None = None,
        server_ttft_us: int | None = None,
        server_queue_us: int | None = None,
    ) -> None:
        """
        Add one request; each argument is the column of its name, in the units of the column (see RequestRecord).

        Args:
            chunk_ns: Arrival of each token-bearing chunk on the same clock as the stamps; stored as whole µs after sent_ns
                (rounded down), within 0..2**32-1. An array("q") is kept as it is, anything else copied; None is null (not a stream).
            chunk_tokens: Tokens of each chunk, as many as chunk_ns; None where not known.
        """
        if chunk_ns is not None:
            chunk_ns = _buffer(chunk_ns)
            self._num_chunks += len(chunk_ns)
        if chunk_tokens is not None:
            chunk_tokens = _buffer(chunk_tokens)
        self._rows.append(
            (
                level,
                client,
                connection,
                index,
                request_id,
                phase,
                target,
                scheduled_ns,
                first_sent_ns,
                sent_ns,
                first_byte_ns,
                first_token_ns,
                first_answer_ns,
                last_token_ns,
                end_ns,
                connect_ns,
                outcome,
                error_kind,
                http_status,
                error_text,
                finish_reason,
                prompt_tokens,
                completion_tokens,
                cached_tokens,
                reasoning_tokens,
                token_source,
                user_messages,
                prompt_id,
                chunk_ns,
                chunk_tokens,
                bytes_received,
                reads,
                attempts,
                reconnects,
                stamp,
                client_lag_us,
                max_tokens,
                expected_prompt_tokens,
                content_encoding,
                server_ttft_us,
                server_queue_us,
            )
        )

    def append_record(self, record: RequestRecord) -> None:
        """Add one record; its chunk_us need a sent_ns to be told from."""
        values = {name: getattr(record, name) for name in _RECORD_FIELDS}
        if record.sent_ns is not None:
            values["chunk_ns"] = array("q", (record.sent_ns + us * 1_000 for us in record.chunk_us))
        self.append(chunk_tokens=record.chunk_tokens, **values)

    def take(self, epoch_ns: int) -> pa.Table:
        """
        Return all rows in the schema REQUESTS and forget them.

        Args:
            epoch_ns: The run's epoch on the clock of the stamps.

        A number that its column cannot hold (a server may send any) becomes null, or the nearest that fits where null is not
        allowed; one odd answer must not cost the batch.
        """
        rows, self._rows, self._num_chunks = self._rows, [], 0
        if not rows:
            return REQUESTS.empty_table()
        values = list(zip(*rows, strict=True))
        arrays: list[pa.Array[Any]] = []
        for at, field in enumerate(REQUESTS):
            column = values[at]
            if at == _CHUNK_US:
                arrays.append(_chunk_us(column, values[_SENT]))
            elif at == _CHUNK_TOKENS:
                arrays.append(_chunk_tokens(column))
            elif field.name in _STAMPS:
                arrays.append(_moved(column, epoch_ns))
            else:
                arrays.append(_column(column, field))
        return pa.Table.from_arrays(arrays, schema=REQUESTS)


_RECORD_FIELDS = tuple(
    name for name in RequestRecord.__dataclass_fields__ if name not in ("chunk_us", "chunk_tokens")
)


def records_to_table(records: Iterable[RequestRecord], epoch_ns: int) -> pa.Table:
    """
    Return records as a table in the schema REQUESTS.

    Args:
        records: Any number, in any order.
        epoch_ns: The run's epoch on the clock of the records' stamps; 0 where they are relative to it already.
    """
    columns = RequestColumns()
    for record in records:
        columns.append_record(record)
    return columns.take(epoch_ns)


def _moved(column: Sequence[int | None], epoch_ns: int) -> pa.Array[Any]:
    return pa.array([None if v is None else v - epoch_ns for v in column], pa.int64())


def _column(column: Sequence[Any], field: pa.Field[Any]) -> pa.Array[Any]:
    if pa.types.is_string(field.type):
        return _strings(column, MAX_ERROR_TEXT if field.name == "error_text" else None)
    made: pa.Array[Any]
    try:
        made = pa.array(column, field.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        made = pa.array(_fitted(column, field), field.type)
    return made


def _strings(column: Sequence[str | None], limit: int | None) -> pa.Array[Any]:
    if limit is not None:
        column = [None if v is None else v[:limit] for v in column]
    try:
        return pa.array(column, pa.string())
    except UnicodeEncodeError:  # JSON may hold lone surrogates, which UTF-8 cannot
        return pa.array(
            [None if v is None else v.encode("utf-8", "replace").decode() for v in column], pa.string()
        )


def _fitted(column: Sequence[Any], field: pa.Field[Any]) -> list[int | None]:
    half = 1 << (field.type.bit_width - 1)
    fitted: list[int | None] = []
    for value in column:
        if isinstance(value, int) and -half <= value < half:
            fitted.append(int(value))
        elif field.nullable:
            fitted.append(None)
        else:
            fitted.append(max(-half, min(half - 1, int(value))))
    return fitted


def _buffer(values: _Ints) -> array[int] | npt.NDArray[np.int64]:
    if isinstance(values, array) and values.typecode == "q":
        return values
    if isinstance(values, np.ndarray):
        return np.ascontiguousarray(values, np.int64)
    return array("q", values)


def _chunk_us(column: Sequence[Any], sent: Sequence[int | None]) -> pa.Array[Any]:
    lengths = _lengths(column)
    sent_ns = np.fromiter((0 if v is None else v for v in sent), np.int64, len(sent))
    flat_us = (_flat(column) - np.repeat(sent_ns, lengths)) // 1_000
    clipped = np.clip(flat_us, 0, _U32_MAX).astype(np.uint32)
    return _list_array(column, lengths, clipped, pa.list_(pa.uint32()))


def _chunk_tokens(column: Sequence[Any]) -> pa.Array[Any]:
    clipped = np.clip(_flat(column), 0, _U16_MAX).astype(np.uint16)
    return _list_array(column, _lengths(column), clipped, pa.list_(pa.uint16()))


def _lengths(column: Sequence[Any]) -> npt.NDArray[np.int64]:
    return np.fromiter((0 if v is None else len(v) for v in column), np.int64, len(column))


def _flat(column: Sequence[Any]) -> npt.NDArray[np.int64]:
    # One join of the buffers: an np.asarray of each would cost several µs a request.
    return np.frombuffer(b"".join([v for v in column if v is not None]), np.int64)


def _list_array(
    column: Sequence[Any],
    lengths: npt.NDArray[np.int64],
    flat: npt.NDArray[Any],
    list_type: pa.DataType,
) -> pa.Array[Any]:
    offsets = np.zeros(len(column) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    absent = np.fromiter((v is None for v in column), np.bool_, len(column))
    values: pa.Array[Any] = pa.array(flat)
    starts: pa.Int32Array = pa.array(offsets, pa.int32())
    mask: pa.Array[Any] | None = pa.array(absent) if absent.any() else None
    lists: pa.Array[Any] = pa.ListArray.from_arrays(starts, values, type=list_type, mask=mask)
    return lists
