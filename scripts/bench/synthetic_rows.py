"""
Rows of requests as a client would have sent them, made by the hundred thousand: for what comes behind the clients.

A closed loop of equal requests: connection c sends its k-th one when the one before has ended. Chunk times have the noise of a real
step clock, since how well they compress decides what they cost.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pyarrow as pa

from distbench.core.records import Outcome, Phase, Stamp, TokenSource, request_id
from distbench.store.schema import REQUESTS

URL = "http://127.0.0.1:8000"
_TTFT_NS = 50_000_000
_ITL_NS = 20_000_000
_NOISE_US = 200
_PROMPT_TOKENS = 256


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stream:
    """
    A level's closed loop.

    Attributes:
        connections: In flight all the time.
        tokens: Output tokens, and chunks, of each request.
        clients: The connections belong to so many.
        level: Its number.
    """

    connections: int
    tokens: int
    clients: int = 1
    level: int = 0

    @property
    def request_ns(self) -> int:
        """How long a request takes."""
        return _TTFT_NS + (self.tokens - 1) * _ITL_NS + 1_000_000


def rows(stream: Stream, start: int, count: int, *, seed: int = 0, client: int | None = None) -> pa.Table:
    """
    Return the requests start..start+count of a level, in the schema REQUESTS.

    Args:
        stream: The level.
        start: Index of the first one.
        count: How many.
        seed: Of the noise.
        client: Whose they all are; None: each that of its connection.
    """
    rng = np.random.default_rng([seed, start])
    index = np.arange(start, start + count, dtype=np.int64)
    connection = (index % stream.connections).astype(np.int32)
    sent_ns = index // stream.connections * stream.request_ns + rng.integers(0, 500_000, count)
    chunk_us = _chunk_us(stream, count, rng)
    first_ns, last_ns = (sent_ns + chunk_us[:, at].astype(np.int64) * 1_000 for at in (0, -1))
    offsets: pa.Int32Array = pa.array(np.arange(count + 1) * stream.tokens, pa.int32())
    chunks: Any = pa.array(chunk_us.ravel())
    columns: dict[str, Any] = {
        "level": np.full(count, stream.level, np.int16),
        "client": np.full(count, client, np.int16) if client is not None else (connection % stream.clients),
        "connection": connection,
        "index": index,
        "request_id": index + request_id(stream.level, Phase.MEASURED, 0),
        "first_sent_ns": sent_ns,
        "sent_ns": sent_ns,
        "first_byte_ns": first_ns - 50_000,
        "first_token_ns": first_ns,
        "first_answer_ns": first_ns,
        "last_token_ns": last_ns,
        "end_ns": last_ns + 100_000,
        "http_status": np.full(count, 200, np.int16),
        "prompt_tokens": np.full(count, _PROMPT_TOKENS, np.int32),
        "completion_tokens": np.full(count, stream.tokens, np.int32),
        "user_messages": np.ones(count, np.int16),
        "prompt_id": rng.integers(0, 2**62, count),
        "chunk_us": pa.ListArray.from_arrays(offsets, chunks),
        "bytes_received": rng.integers(25_000, 30_000, count),
        "reads": np.full(count, stream.tokens + 2, np.int32),
        "attempts": np.ones(count, np.int8),
        "reconnects": np.zeros(count, np.int8),
        "client_lag_us": rng.integers(5, 400, count).astype(np.int32),
        "max_tokens": np.full(count, stream.tokens, np.int32),
    }
    words = {
        "phase": Phase.MEASURED,
        "target": URL,
        "outcome": Outcome.OK,
        "finish_reason": "length",
        "token_source": TokenSource.USAGE,
        "stamp": Stamp.KERNEL,
    }
    arrays: list[Any] = []
    for field in REQUESTS:
        if field.name in columns:
            arrays.append(pa.array(columns[field.name]).cast(field.type))
        elif field.name in words:
            arrays.append(pa.repeat(pa.scalar(str(words[field.name]), field.type), count))
        else:
            arrays.append(pa.nulls(count, field.type))
    return pa.Table.from_arrays(arrays, schema=REQUESTS)


def _chunk_us(stream: Stream, count: int, rng: np.random.Generator) -> Any:
    steps = np.arange(stream.tokens) * (_ITL_NS // 1_000) + _TTFT_NS // 1_000
    noise = rng.normal(0, _NOISE_US, (count, stream.tokens))
    return np.sort(np.clip(steps + noise, 0, None), axis=1).astype(np.uint32)
