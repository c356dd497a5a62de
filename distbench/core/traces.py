"""
Replaying traces: arrival times and lengths of real traffic, with text made up to those lengths (floor F1).

Two forms are read. CSV with a header, and JSON lines as Mooncake publishes them: timestamp (ms), input_length, output_length and
hash_ids, one id for each block of 512 tokens of the prompt; prompts with equal leading ids begin with the same text.
"""

from __future__ import annotations

import csv
import dataclasses
import datetime
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from distbench.core.datasets import DatasetReport, RowCounter, SkipRow
from distbench.core.lengths import MAX_TOKENS

BLOCK_TOKENS = 512
"""Tokens that a hash id stands for."""

_INPUT_NAMES = ("input_length", "input_tokens", "prompt_tokens", "contexttokens", "num_prefill_tokens")
_OUTPUT_NAMES = (
    "output_length",
    "output_tokens",
    "completion_tokens",
    "generatedtokens",
    "num_decode_tokens",
)
_TIME_NAMES = {
    "timestamp_ns": 1.0,
    "timestamp_us": 1e3,
    "timestamp_ms": 1e6,
    "timestamp_s": 1e9,
    "arrived_at": 1e9,
}
_NS_PER_PLAIN_TIME = {"csv": 1e9, "jsonl": 1e6}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """
    Requests in order of time; arrays of one shape (n,), n >= 1.

    Attributes:
        times_ns: Send times from the first request's, ascending.
        input_tokens, output_tokens: Lengths, >= 1.
        hash_ids: Ids of the prompts' blocks, one request after the other.
        hash_ends: Shape (n + 1,): request i has hash_ids[hash_ends[i]:hash_ends[i + 1]].
        report: What was read.
    """

    times_ns: npt.NDArray[np.int64]
    input_tokens: npt.NDArray[np.int64]
    output_tokens: npt.NDArray[np.int64]
    hash_ids: npt.NDArray[np.int64]
    hash_ends: npt.NDArray[np.int64]
    report: DatasetReport


def read_trace(lines: Iterable[bytes], path: str) -> Trace:
    """
    Read a trace.

    A column or key "timestamp" is seconds (or a date and time) in CSV and milliseconds in JSON lines; timestamp_s, _ms, _us and _ns say
    it themselves.

    Args:
        lines: The file's lines.
        path: Named in errors.

    Raises:
        PlanError: no row can be used.
    """
    counter = RowCounter("line")
    rows: list[tuple[float, int, int, tuple[int, ...]]] = []
    for number, form, row in _rows(lines):
        try:
            if isinstance(row, SkipRow):
                raise row
            rows.append(_row(row, form))
            counter.use()
        except SkipRow as skip:
            counter.skip(number, str(skip))
    report = counter.checked_report(path)
    rows.sort(key=lambda row: row[0])
    return Trace(
        times_ns=np.array([round(row[0] - rows[0][0]) for row in rows], dtype=np.int64),
        input_tokens=np.array([row[1] for row in rows], dtype=np.int64),
        output_tokens=np.array([row[2] for row in rows], dtype=np.int64),
        hash_ids=np.array([number for row in rows for number in row[3]], dtype=np.int64),
        hash_ends=np.cumsum([0, *(len(row[3]) for row in rows)], dtype=np.int64),
        report=report,
    )


def _rows(lines: Iterable[bytes]) -> Iterator[tuple[int, str, Mapping[str, Any] | SkipRow]]:
    """Yield (line number from 1, csv | jsonl, the row with lower-case keys or why it is none)."""
    header: list[str] | None = None
    is_json: bool | None = None
    for number, line in enumerate(lines, 1):
        text = line.decode("utf-8-sig", "replace").strip()
        if not text:
            continue
        if is_json is None:
            is_json = text.startswith("{")
        if is_json:
            yield number, "jsonl", _json_row(text)
            continue
        values = next(csv.reader([text]))
        if header is None:
            header = [name.strip().lower() for name in values]
        elif len(values) != len(header):
            yield number, "csv", SkipRow("with another number of columns than the header")
        else:
            yield number, "csv", dict(zip(header, values, strict=True))


def _json_row(text: str) -> Mapping[str, Any] | SkipRow:
    try:
        row = json.loads(text)
    except (ValueError, RecursionError):
        return SkipRow("not JSON")
    if not isinstance(row, dict):
        return SkipRow("not an object")
    return {str(key).lower(): value for key, value in row.items()}


def _row(row: Mapping[str, Any], form: str) -> tuple[float, int, int, tuple[int, ...]]:
    """Return (time in ns, input tokens, output tokens, hash ids)."""
    return (
        _time_ns(row, form),
        _tokens(row, _INPUT_NAMES, "an input length"),
        _tokens(row, _OUTPUT_NAMES, "an output length"),
        _hash_ids(row.get("hash_ids")),
    )


def _time_ns(row: Mapping[str, Any], form: str) -> float:
    for name, factor in _TIME_NAMES.items():
        if name in row:
            return _number(row[name], "a timestamp") * factor
    value = row.get("timestamp")
    if isinstance(value, str) and ("-" in value.lstrip("-") or ":" in value):
        try:
            moment = datetime.datetime.fromisoformat(value.strip())
        except ValueError:
            raise SkipRow("without a timestamp") from None
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=datetime.UTC)
        since = moment - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
        return (since.days * 86_400 + since.seconds) * 1e9 + since.microseconds * 1e3
    return _number(value, "a timestamp") * _NS_PER_PLAIN_TIME[form]


def _tokens(row: Mapping[str, Any], names: Sequence[str], what: str) -> int:
    for name in names:
        if name in row:
            number = _number(row[name], what)
            if not (number.is_integer() and 1 <= number <= MAX_TOKENS):
                raise SkipRow(f"with {what} that is no number of tokens above 0")
            return int(number)
    raise SkipRow(f"without {what}")


def _number(value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise SkipRow(f"without {what}")
    try:
        number = float(value)
    except (ValueError, OverflowError):
        raise SkipRow(f"without {what}") from None
    if not math.isfinite(number):
        raise SkipRow(f"without {what}")
    return number


def _hash_ids(value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(n, int) and abs(n) < 2**62 for n in value):
        raise SkipRow("with hash_ids that are no list of numbers")
    return tuple(value)
