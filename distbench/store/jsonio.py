"""JSON that every reader accepts: no NaN, no Infinity, no lone surrogate (floor F2)."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from enum import Enum
from typing import Any

import numpy as np

from distbench.errors import StoreError


def clean(value: Any) -> Any:
    """
    Return value in terms of JSON.

    A number that is not finite becomes null, and the object around it gets a key ``<key>_reason`` that says what it was, unless it
    has that key already. Dataclasses become objects, sets and arrays lists, enums their values, numpy scalars numbers; anything
    unknown its text.
    """
    if value is None or (isinstance(value, bool | int | str) and not isinstance(value, Enum)):
        return value
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Enum):
        return clean(value.value)
    if isinstance(value, np.generic):
        return clean(value.item())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return clean({f.name: getattr(value, f.name) for f in dataclasses.fields(value)})
    if isinstance(value, Mapping):
        return _clean_object(value)
    if isinstance(value, list | tuple | range | set | frozenset | np.ndarray):
        items = sorted(value) if isinstance(value, set | frozenset) else list(value)
        return [clean(item) for item in items]
    return str(value)


def _clean_object(value: Mapping[Any, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, item in value.items():
        out[str(key)] = clean(item)
        if isinstance(item, float | np.floating) and not math.isfinite(item):
            out.setdefault(f"{key}_reason", f"not finite: {float(item)}")
    return out


def dumps(value: Any) -> bytes:
    """Return value as indented JSON in ASCII, ending in a line feed."""
    return (json.dumps(clean(value), indent=2, allow_nan=False) + "\n").encode("ascii")


def loads(data: bytes, where: str) -> dict[str, Any]:
    """
    Return the JSON object in data.

    Args:
        data: UTF-8 text.
        where: Named in the error.

    Raises:
        StoreError: data is no JSON object.
    """
    try:
        value = json.loads(data)
    except ValueError as error:
        raise StoreError(f"{where} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise StoreError(f"{where} is not a JSON object")
    return value
