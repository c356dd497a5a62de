"""
Columns of a table as numpy arrays (floor F3, pure).

Numbers become float64 with NaN for null. Stamps stay exact: float64 holds every whole number of ns up to 2**53, which is 104 days.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]


def numbers(table: pa.Table, name: str) -> Floats:
    """Return a numeric column, null as NaN; shape (rows,). A column that the table does not have is all NaN."""
    if name not in table.schema.names:
        return np.full(table.num_rows, np.nan)
    return np.asarray(table[name].to_numpy(), np.float64)


def integers(table: pa.Table, name: str) -> Ints:
    """Return an integer column that has no null; shape (rows,)."""
    return np.asarray(table[name].to_numpy(), np.int64)


def is_word(table: pa.Table, name: str, *words: str) -> Bools:
    """Tell for each row whether a text column (plain or dictionary) holds one of the words; null does not."""
    column: Any = table[name]
    if pa.types.is_dictionary(column.type):
        parts = [_is_word_coded(chunk, words) for chunk in column.chunks]
        return np.concatenate(parts) if parts else np.zeros(0, np.bool_)
    found: Any = pc.equal(column, pa.scalar(words[0], pa.string()))  # several times faster than is_in
    for word in words[1:]:
        found = pc.or_(found, pc.equal(column, pa.scalar(word, pa.string())))
    if column.null_count:
        found = pc.fill_null(found, False)
    return np.asarray(found.to_numpy(), np.bool_)


def _is_word_coded(chunk: Any, words: Sequence[str]) -> Bools:
    codes = [word.as_py() in words for word in chunk.dictionary]
    table: Bools = np.array([*codes, False], np.bool_)  # the last one stands for null
    indices = chunk.indices.fill_null(len(codes)) if chunk.null_count else chunk.indices
    found: Bools = table[indices.to_numpy()]
    return found


def rows_where(table: pa.Table, mask: Bools, columns: Sequence[str]) -> pa.Table:
    """Return some columns of the rows that the mask holds; copying a whole table of texts and lists would cost seconds."""
    narrow = table.select([name for name in columns if name in table.schema.names])
    return narrow if mask.all() else narrow.filter(pa.array(mask))


def measured(table: pa.Table) -> Bools:
    """Tell for each row whether it is of the measured phase."""
    return is_word(table, "phase", "measured")


def flat_lists(column: pa.ChunkedArray[Any]) -> tuple[npt.NDArray[Any], Ints]:
    """
    Return the values of a list column and where each row's begin.

    Returns:
        Values of all rows in one array; offsets of shape (rows + 1,). A null list is an empty one.
    """
    lengths: Any = pc.fill_null(pc.list_value_length(column), 0)
    offsets = np.zeros(len(column) + 1, np.int64)
    np.cumsum(np.asarray(lengths.to_numpy(), np.int64), out=offsets[1:])
    flat: Any = pc.list_flatten(column)
    return np.asarray(flat.to_numpy()), offsets


def sums_of_rows(values: npt.NDArray[Any], offsets: Ints) -> Floats:
    """Return the sum of each row's values, 0 for an empty row; shape (len(offsets) - 1,)."""
    sums = np.zeros(len(offsets) - 1)
    filled = offsets[1:] > offsets[:-1]
    if filled.any():
        kind = np.int64 if values.dtype == np.bool_ else None
        sums[filled] = np.add.reduceat(values, offsets[:-1][filled], dtype=kind)
    return sums


def some(value: float) -> float | None:
    """Return a Python float, None for NaN and the infinities."""
    return float(value) if np.isfinite(value) else None
