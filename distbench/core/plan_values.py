"""
Reading single settings of a plan (floor F1).

A value comes from a TOML table or from a flag's text; one reader takes both. Each raises ValueError with the end of a sentence that
begins with the setting's name. No reader repeats a header's value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from distbench.core.lengths import LengthSpec
from distbench.core.plan import Slo
from distbench.errors import PlanError
from distbench.units import parse_duration_s

_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


def read_int(value: Any) -> int:
    """Return an int; booleans and fractions are refused."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"needs a whole number, got {value!r}")
    try:
        return int(value)
    except ValueError:
        raise ValueError(f"needs a whole number, got {value!r}") from None


def read_float(value: Any) -> float:
    """Return a float from a number or its text."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"needs a number, got {value!r}")
    try:
        return float(value)
    except ValueError:
        raise ValueError(f"needs a number, got {value!r}") from None


def read_duration(value: Any) -> float:
    """Return seconds from a number (seconds) or a text such as 500ms."""
    return parse_duration_s(value) if isinstance(value, str) else read_float(value)


def read_limit(value: Any) -> float | None:
    """Return a time limit in seconds; 0 or "off" is no limit, None."""
    if value == "off":
        return None
    return read_duration(value) or None


def read_bool(value: Any) -> bool:
    """Return true or false; nothing else counts."""
    if not isinstance(value, bool):
        raise ValueError(f"needs true or false, got {value!r}")
    return value


def read_str(value: Any) -> str:
    """Return a text that is not empty."""
    if not isinstance(value, str) or not value:
        raise ValueError(f"needs a text, got {value!r}")
    return value


def read_length(value: Any) -> LengthSpec:
    """Return a length of tokens."""
    if isinstance(value, LengthSpec):
        return value
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"needs a number of tokens or a distribution, got {value!r}")
    return LengthSpec.parse(value)


def read_ints(value: Any) -> tuple[int, ...]:
    """Return ints from one number, a list, or a text such as 1,8,64."""
    if isinstance(value, str):
        value = [part for part in value.split(",") if part.strip()]
    items = value if isinstance(value, list | tuple) else [value]
    if not items:
        raise ValueError("needs at least one number")
    return tuple(read_int(item) for item in items)


def read_strs(value: Any) -> tuple[str, ...]:
    """Return texts from one text or a list of them."""
    items = value if isinstance(value, list | tuple) else [value]
    return tuple(read_str(item) for item in items)


def read_json_object(value: Any) -> dict[str, Any]:
    """Return a JSON object from a table or its text."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"is not JSON: {error}") from None
    if not isinstance(value, Mapping):
        raise ValueError("needs a JSON object, such as '{\"temperature\": 0}'")
    try:
        return dict(json.loads(json.dumps(value, allow_nan=False)))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"holds what JSON has not: {error}") from None


def read_headers(value: Any) -> tuple[tuple[str, str], ...]:
    """Return headers from a table, or from texts "K=V" or "K: V". A value is never part of an error text."""
    if isinstance(value, Mapping):
        pairs = [(str(name), str(text).strip()) for name, text in value.items()]
    else:
        pairs = [_split_header(text) for text in _header_texts(value)]
    for name, text in pairs:
        if not _HEADER_NAME.fullmatch(name):
            raise ValueError(f"has a name that HTTP does not allow: {name!r}")
        if not all(c == "\t" or " " <= c <= "~" for c in text):
            raise ValueError(
                f"value of {name!r} holds a line break or another character that is no plain ASCII"
            )
    return tuple(pairs)


def _header_texts(value: Any) -> tuple[str, ...]:
    items = value if isinstance(value, list | tuple) else [value]
    if not all(isinstance(item, str) and item for item in items):
        raise ValueError("must be K=V or 'K: V'")
    return tuple(items)


def _split_header(text: str) -> tuple[str, str]:
    at = min((i for i in (text.find("="), text.find(":")) if i >= 0), default=0)
    if at == 0:
        raise ValueError("must be K=V or 'K: V'")
    return text[:at].strip(), text[at + 1 :].strip()


def read_slos(value: Any) -> tuple[Slo, ...]:
    """Return SLOs from a table, or from texts such as ttft=500ms."""
    if isinstance(value, Mapping):
        pairs = [(str(k), v) for k, v in value.items()]
    else:
        pairs = []
        for text in read_strs(value):
            name, separator, limit = text.partition("=")
            if not separator:
                raise ValueError(f"must be METRIC=LIMIT such as ttft=500ms, got {text!r}")
            pairs.append((name.strip(), limit.strip()))
    try:
        return tuple(Slo(metric=name, limit_s=read_duration(limit)) for name, limit in pairs)
    except PlanError as error:
        raise ValueError("; ".join(error.problems)) from None
