"""
What happened to a request: the words, and the record of one (floor F1).

The columns of the dataset are in store/schema.py; each attribute here has the name of its column. A failed request is a record
like any other. None means "did not happen" or "not known", never zero.
"""

from __future__ import annotations

import dataclasses
from enum import StrEnum

MAX_ERROR_TEXT = 300


class Phase(StrEnum):
    """Whether a request counts."""

    WARMUP = "warmup"
    MEASURED = "measured"


class Outcome(StrEnum):
    """
    What became of a planned request.

    OK and FAILED ended by themselves; CUT was ended by us (deadline, interrupt); DROPPED was never sent (its slot found no free
    connection, or the level ended first); LOST was planned by a client that died: nothing is known of it.
    """

    OK = "ok"
    FAILED = "failed"
    CUT = "cut"
    DROPPED = "dropped"
    LOST = "lost"


class ErrorKind(StrEnum):
    """Why a request failed. The last three say that the client, not the server, is to blame."""

    CONNECT = "connect"
    CONNECT_TIMEOUT = "connect_timeout"
    TLS = "tls"
    FIRST_TOKEN_TIMEOUT = "first_token_timeout"
    IDLE_TIMEOUT = "idle_timeout"
    TOTAL_TIMEOUT = "total_timeout"
    RESET = "reset"
    TRUNCATED = "truncated"
    PROTOCOL = "protocol"
    NOT_SSE = "not_sse"
    HTTP_4XX = "http_4xx"
    RATE_LIMITED = "rate_limited"
    HTTP_5XX = "http_5xx"
    STREAM_ERROR = "stream_error"
    EMPTY = "empty"
    CONTEXT_OVERFLOW = "context_overflow"
    CLIENT_FD_LIMIT = "client_fd_limit"
    CLIENT_PORTS = "client_ports"
    CLIENT_LIMIT = "client_limit"


class TokenSource(StrEnum):
    """Where the number of completion tokens comes from, best first."""

    USAGE = "usage"
    TOKEN_IDS = "token_ids"
    TOKENIZER = "tokenizer"
    CHUNKS = "chunks"


class Stamp(StrEnum):
    """Who took the receive stamps of a request: the kernel for every read, or user space for at least one."""

    KERNEL = "kernel"
    USER = "user"


@dataclasses.dataclass(slots=True, kw_only=True)
class RequestRecord:
    """
    One planned request and what became of it.

    Stamps are ns on the monotonic clock of the client until the recorder moves them to the run's epoch on the driver's clock.

    Attributes:
        level: Number of the level, unique in the run (each repeat is a level of its own).
        client: Index of the client.
        connection: Index of the connection over all clients; -1 where none was ever taken.
        index: Index of the request in its level and phase.
        request_id: Sent as X-Request-Id in decimal; unique in the run.
        target: Base URL of the replica.
        scheduled_ns: When the plan wanted it sent; None in closed loop.
        first_sent_ns: Just before the first attempt was written; sent_ns: before the last one.
        first_byte_ns: First byte of the (final) response head.
        first_token_ns: First token of any kind; first_answer_ns: first token that is not reasoning.
        last_token_ns: Last chunk that bore a token.
        end_ns: Last body byte, or the failure.
        connect_ns: Duration of connecting (TCP and TLS); None where the connection was reused.
        chunk_us: Arrival of each token-bearing chunk, µs after sent_ns; equal values came in one read (bundled).
        chunk_tokens: Tokens of each chunk; None where the server does not tell.
        attempts: Sends of this request; reconnects: those of them that replaced a stale keep-alive connection.
        client_lag_us: Worst delay between a kernel stamp and the client's reading of it; None without kernel stamps.
    """

    level: int
    client: int
    connection: int
    index: int
    request_id: int
    phase: Phase
    target: str
    prompt_id: int
    user_messages: int
    outcome: Outcome
    scheduled_ns: int | None = None
    first_sent_ns: int | None = None
    sent_ns: int | None = None
    first_byte_ns: int | None = None
    first_token_ns: int | None = None
    first_answer_ns: int | None = None
    last_token_ns: int | None = None
    end_ns: int | None = None
    connect_ns: int | None = None
    error_kind: ErrorKind | None = None
    http_status: int | None = None
    error_text: str | None = None
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    token_source: TokenSource | None = None
    chunk_us: list[int] = dataclasses.field(default_factory=list)
    chunk_tokens: list[int] | None = None
    bytes_received: int = 0
    reads: int = 0
    attempts: int = 0
    reconnects: int = 0
    stamp: Stamp | None = None
    client_lag_us: int | None = None


_LEVEL_STRIDE = 10**12
_WARMUP_OFFSET = 5 * 10**11


def request_id(level: int, phase: Phase, index: int) -> int:
    """
    Return the id of a request, unique in a run: level, phase and index read off its decimal digits.

    Level 3, measured, index 17 is 3000000000017; warm-up requests have a 5 behind the level's digits.

    Raises:
        ValueError: index is negative or too large for the scheme (5e11).
    """
    if not 0 <= index < _WARMUP_OFFSET:
        raise ValueError(f"request index {index} is outside 0..{_WARMUP_OFFSET - 1}")
    return level * _LEVEL_STRIDE + (_WARMUP_OFFSET if phase is Phase.WARMUP else 0) + index
