"""Requests written down in seconds, as tables of the dataset."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from distbench.store.schema import REQUESTS


def ns(seconds: float | None) -> int | None:
    """Return seconds as ns; None stays None."""
    return None if seconds is None else round(seconds * 1e9)


def request(
    sent: float | None,
    tokens: Sequence[float] = (),
    *,
    end: float | None = None,
    scheduled: float | None = None,
    outcome: str = "ok",
    streamed: bool = True,
    **columns: Any,
) -> dict[str, Any]:
    """
    Return a request sent at a time, with a chunk of one token at each time of tokens (all in seconds).

    It ends with its last token unless told otherwise; completion_tokens is the number of chunks unless given.
    """
    first, last = (tokens[0], tokens[-1]) if tokens else (None, None)
    end = last if end is None else end
    row: dict[str, Any] = {
        "level": 0,
        "client": 0,
        "connection": 0,
        "index": 0,
        "phase": "measured",
        "target": "http://h:1/v1",
        "scheduled_ns": ns(scheduled),
        "first_sent_ns": ns(sent),
        "sent_ns": ns(sent),
        "first_token_ns": ns(first),
        "first_answer_ns": ns(first),
        "last_token_ns": ns(last),
        "end_ns": ns(end),
        "outcome": outcome,
        "user_messages": 1,
        "prompt_id": 0,
        "bytes_received": 0,
        "reads": 0,
        "attempts": 1,
        "reconnects": 0,
        "completion_tokens": len(tokens) if outcome == "ok" and streamed else None,
        "chunk_us": [round((t - sent) * 1e6) for t in tokens] if streamed and sent is not None else None,
    }
    return row | columns


def table(rows: Iterable[dict[str, Any]]) -> pa.Table:
    """Return requests in the schema of the dataset, with ids of their own where none is given."""
    numbered = [{"request_id": i, **row} for i, row in enumerate(rows)]
    return pa.Table.from_pylist(numbered, schema=REQUESTS)


def steady(
    *,
    connections: int,
    per_connection: int,
    service_s: float,
    num_tokens: int = 10,
    start: float = 0.0,
    stagger_s: float = 0.0,
    **columns: Any,
) -> list[dict[str, Any]]:
    """
    Return a closed loop without a pause: every connection sends its requests one after the other.

    Tokens come evenly, the last one at the end; connection c starts c * stagger_s later.
    """
    out = []
    step = service_s / num_tokens
    for connection in range(connections):
        for i in range(per_connection):
            sent = start + connection * stagger_s + i * service_s
            tokens = [sent + step * (k + 1) for k in range(num_tokens)]
            out.append(request(sent, tokens, connection=connection, **columns))
    return out
