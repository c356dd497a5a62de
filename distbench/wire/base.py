"""
The border of the wire (floor F2): what a connection is given, what it gives back.

A connection sends one request at a time and returns the bytes of the answer with the time each read arrived. It knows HTTP and
TLS, and nothing of tokens: what the bytes mean is read later, off the hot path, by core/openai_api.py. Two implementations keep
this Protocol and pass one conformance suite: fast.py (raw sockets, kernel stamps) and httpx_ref.py (the reference).
"""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Callable
from typing import Protocol

from distbench.core.openai_template import Template
from distbench.core.records import ErrorKind, Stamp

TemplateOf = Callable[[bytes | None, bytes], Template | None]
"""Finds the template of a piece, from the piece ahead of it (None: it is the first) and itself; None where it has none."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """
    The four limits of a request, in seconds; None is no limit.

    Attributes:
        connect_s: TCP and TLS handshake together.
        first_token_s: Sent -> first token-bearing chunk (response body of a non-streamed answer).
        idle_s: Silence between two reads once the first token is there (comments and pings count as life).
        total_s: Sent -> end of the body.
    """

    connect_s: float | None = 10.0
    first_token_s: float | None = None
    idle_s: float | None = None
    total_s: float | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WireTarget:
    """
    Everything that is the same for all requests of one connection.

    Attributes:
        url: Full URL of the endpoint, such as http://host:8000/v1/chat/completions.
        headers: Extra headers in order, the Authorization header included. They hold secrets: repr() must not show them.
        streaming: The answer is expected as server-sent events.
        ca_file: PEM file of trusted roots; None is the system's.
        insecure: TLS without verification.
        keepalive: False closes the connection after each answer and says so to the server.
        trust_env: Obey proxy variables of the environment. (fast.py supports it for plain http proxies and CONNECT.)
        timeouts: The limits of each request.
        max_response_bytes: Cap of one answer; beyond it the request fails as client_limit, never blamed on the server.
    """

    url: str
    headers: tuple[tuple[str, str], ...] = dataclasses.field(default=(), repr=False)
    streaming: bool = True
    ca_file: str | None = None
    insecure: bool = False
    keepalive: bool = True
    trust_env: bool = False
    timeouts: Timeouts = dataclasses.field(default_factory=Timeouts)
    max_response_bytes: int = 256 * 2**20


@dataclasses.dataclass(slots=True)
class Exchange:
    """
    One request and the raw answer to it. All stamps are ns of this process' CLOCK_MONOTONIC.

    A failure on the wire is error_kind with error_text; the parts that had arrived are kept. An answer with status >= 400 is
    no failure here: its meaning is read with the body.

    Attributes:
        first_sent_ns: Just before the first attempt was written; sent_ns: before the last one. None: never written.
        connect_ns: Duration of connecting for this request (of a connect() ahead of it: told by the first request after it); None
            where the connection had served before.
        first_byte_ns: Arrival of the first byte of the final response's head (1xx responses do not count).
        end_ns: Arrival of the last body byte, or the time of the failure.
        status: HTTP status; None where no head arrived.
        headers: Response headers, names in lower case; repeated ones joined by ", ".
        body: Body bytes after transfer decoding, a piece per read (a read of several chunks is one piece), but for the repeats.
        stamps_ns: Arrival of each piece, those of the repeats included; equal stamps mean nothing here, equal reads do.
        repeats: (n, k): behind the first n pieces of body came k that differ in their text alone from one of them, and were not kept
            (see Template); by ascending n. Told when the exchange has ended.
        complete: The body arrived whole.
        cut: We ended it (cancelled at a deadline or an interrupt); then error_kind is None.
        reads: Reads that brought bytes of the answer; bytes_received: their sum, heads and framing included (decrypted, under TLS).
        attempts: Times the request was written; reconnects: those of them on a fresh connection after a stale one.
        stamp: KERNEL where every read bore a kernel stamp.
        client_lag_ns: Worst kernel-to-user delay of the reads; None without kernel stamps.
        local_address: "ip:port" of our end; None where never connected.
    """

    first_sent_ns: int | None = None
    sent_ns: int | None = None
    connect_ns: int | None = None
    first_byte_ns: int | None = None
    end_ns: int | None = None
    status: int | None = None
    headers: dict[str, str] = dataclasses.field(default_factory=dict)
    body: list[bytes] = dataclasses.field(default_factory=list)
    stamps_ns: array[int] = dataclasses.field(default_factory=lambda: array("q"))
    repeats: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    complete: bool = False
    cut: bool = False
    error_kind: ErrorKind | None = None
    error_text: str | None = None
    reads: int = 0
    bytes_received: int = 0
    attempts: int = 0
    reconnects: int = 0
    stamp: Stamp | None = None
    client_lag_ns: int | None = None
    local_address: str | None = None

    @property
    def held_bytes(self) -> int:
        """About how much memory the answer takes: its kept pieces at the mean size of all, and its stamps."""
        num_pieces = len(self.stamps_ns)
        kept = self.bytes_received * len(self.body) // num_pieces if num_pieces else self.bytes_received
        return kept + self.stamps_ns.itemsize * num_pieces


class Connection(Protocol):
    """One keep-alive HTTP connection with at most one request in flight; owned by one task of one event loop."""

    @property
    def connected(self) -> bool:
        """True while a socket is open (the peer may have closed it unseen)."""
        ...

    async def connect(self) -> Exchange | None:
        """
        Open the connection ahead of the first request.

        Returns:
            None on success (or where it was open); else an Exchange that bears error_kind and error_text.
        """
        ...

    async def exchange(self, request_id: int, body: bytes) -> Exchange:
        """
        Send one POST with this JSON body and X-Request-Id, and read the answer to its end.

        It connects first where needed. It never raises for what the network or the server does; when its task is cancelled it
        closes the socket and re-raises, and ``partial()`` then holds what had arrived.
        """
        ...

    def partial(self) -> Exchange | None:
        """Return the exchange that was in flight when the task was cancelled, with cut=True; None where there was none."""
        ...

    async def close(self) -> None:
        """Close the socket; a second call does nothing."""
        ...
