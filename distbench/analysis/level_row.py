"""One row of levels.parquet as a mapping, and rows as the table (floor F3, pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import pyarrow as pa

from distbench.store.schema import LEVELS

LevelRow: TypeAlias = dict[str, Any]
"""Column -> value, every column of LEVELS; None where it was not measured."""

_MUST_HAVE = {field.name: field.type for field in LEVELS if not field.nullable}


def empty_level_row(**known: Any) -> LevelRow:
    """
    Return a row with nothing in it but what is given: None, or 0, "" and False where the column must have a value.

    Raises:
        ValueError: a name is no column of levels.parquet.
    """
    unknown = sorted(set(known) - set(LEVELS.names))
    if unknown:
        raise ValueError(f"levels.parquet has no column {', '.join(unknown)}")
    row: LevelRow = dict.fromkeys(LEVELS.names)
    for name, kind in _MUST_HAVE.items():
        row[name] = "" if pa.types.is_string(kind) else False if pa.types.is_boolean(kind) else 0
    return row | known


def merged(row: Mapping[str, Any], *others: Mapping[str, Any]) -> LevelRow:
    """Return row with the values of others (the server's figures, the verdict) laid over it; raises as empty_level_row."""
    out = dict(row)
    for other in others:
        out |= other
    return empty_level_row(**out)


def to_table(rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Return rows in the schema LEVELS, in the order given."""
    return pa.Table.from_pylist([dict(row) for row in rows], schema=LEVELS)
