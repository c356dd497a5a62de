"""Answers made of values: what the tests of the API's answers share."""

from __future__ import annotations

import json
from typing import Any

from distbench.core.openai_api import Answer, read_answer

MS = 1_000_000
DONE = b"data: [DONE]\n\n"
STOP = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


def event(value: Any) -> bytes:
    """Return a value as one event of a stream."""
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def delta(**fields: Any) -> dict[str, Any]:
    """Return a chat chunk with one choice and these fields of its delta."""
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": None}]}


def read(
    *timed: tuple[float, Any] | Any,
    complete: bool = True,
    streaming: bool = True,
    status: int = 200,
    **headers: str,
) -> Answer:
    """Read an answer whose pieces are values, raw bytes, or (ms, either)."""
    pieces, stamps = [], []
    for item in timed:
        at_ms, value = item if isinstance(item, tuple) else (0.0, item)
        pieces.append(value if isinstance(value, bytes) else event(value))
        stamps.append(round(at_ms * MS))
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return read_answer(
        status=status,
        headers=names,
        body=pieces,
        stamps_ns=stamps,
        complete=complete,
        streaming=streaming,
        keep_text=True,
    )


A = delta(content="a")
"""A chunk that bears one token."""
