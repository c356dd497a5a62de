"""
HTTP/1.1 on one connection of the simulated server (floor F3).

Lean on purpose: the server shares its cores with the clients that measure it. A whole event goes out in one send call that is
made at once (a transport would hold it until the loop turns), so that the truth log's stamps are those of the wire; the transport
takes over only what the socket does not take.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import socket
import struct
import time
from collections import deque
from email.utils import formatdate
from http import HTTPStatus
from typing import Protocol, cast

import httptools

_MAX_PIPELINED = 16
_MAX_UNSENT_BYTES = 16 * 1024 * 1024
_SO_LINGER_RESET = struct.pack("ii", 1, 0)


@dataclasses.dataclass(slots=True, kw_only=True)
class HttpRequest:
    """
    A request that was read whole.

    Attributes:
        method: In capitals.
        path: Without the query.
        headers: Names in small letters; the last of equal ones.
        body: All of it.
        keep_alive: Whether the connection stays open after the response.
        chunked_allowed: False for HTTP/1.0, whose bodies end with the connection.
    """

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    keep_alive: bool
    chunked_allowed: bool


class Handler(Protocol):
    """Who answers the requests."""

    def connection_opened(self, connection: HttpConnection) -> None:
        """Take note of a connection."""
        ...

    def connection_closed(self, connection: HttpConnection) -> None:
        """The connection is gone, whoever ended it; an answer under way goes nowhere."""
        ...

    def handle(self, connection: HttpConnection, request: HttpRequest) -> None:
        """Answer a request, now or later; it comes when the one before it is answered."""
        ...


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """Bounds of a connection; bytes and seconds."""

    max_header_bytes: int
    max_body_bytes: int
    keep_alive_timeout_s: float


class HttpConnection(asyncio.Protocol):
    """
    One connection.

    Args:
        handler: Answers the requests.
        loop: Runs the idle timer.
        limits: Its bounds.
    """

    def __init__(self, handler: Handler, loop: asyncio.AbstractEventLoop, limits: HttpLimits) -> None:
        self._handler = handler
        self._loop = loop
        self._limits = limits
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._fd: int | None = None
        self._queue: deque[HttpRequest] = deque()
        self._idle_timer: asyncio.TimerHandle | None = None
        self._url = b""
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._head_bytes = 0
        self._in_head = True
        self.request: HttpRequest | None = None
        self.peer = ""

    # The transport's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport; without TLS its descriptor too."""
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        self.peer = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else str(peer or "")
        sock = transport.get_extra_info("socket")
        if sock is not None and transport.get_extra_info("sslcontext") is None:
            self._fd = sock.fileno()
        self._handler.connection_opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the handler; nothing is sent any more."""
        self._fd = None
        self._transport = None
        self._queue.clear()
        self._cancel_idle_timer()
        self._handler.connection_closed(self)

    def data_received(self, data: bytes) -> None:
        """Feed the parser, within the bounds."""
        self._cancel_idle_timer()
        if self._in_head:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._refuse(400, "Upgrade is not supported.")
        except httptools.HttpParserError:
            self._refuse(400, "Invalid HTTP request received.")
        if self._in_head and self._head_bytes > self._limits.max_header_bytes:
            self._refuse(431, "Request header fields too large.")
        # Outside of the parser's callbacks, which would take a fault of ours for one of the client's.
        self._handle_next()

    # The parser's side.

    def on_message_begin(self) -> None:
        """Start a request."""
        self._url = b""
        self._headers = {}
        self._body = []
        self._body_bytes = 0
        self._in_head = True

    def on_url(self, url: bytes) -> None:
        """Collect the target, which may come in parts."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header."""
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """The head is whole; a client that asks first is told to go on."""
        self._in_head = False
        self._head_bytes = 0
        if self._headers.get("expect", "").lower() == "100-continue":
            self.send(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        """Keep a part of the body, within the bound."""
        self._body_bytes += len(body)
        if self._body_bytes > self._limits.max_body_bytes:
            self._refuse(413, "Request body too large.")
        else:
            self._body.append(body)

    def on_message_complete(self) -> None:
        """A request is whole; it is handled when those before it are answered."""
        self._in_head = True
        if not self.is_open:
            return
        self._queue.append(
            HttpRequest(
                method=self._parser.get_method().decode("latin-1"),
                path=_path(self._url),
                headers=self._headers,
                body=b"".join(self._body),
                keep_alive=self._parser.should_keep_alive(),
                chunked_allowed=self._parser.get_http_version() != "1.0",
            )
        )
        if len(self._queue) > _MAX_PIPELINED:
            self.close()

    # The handler's side.

    @property
    def is_open(self) -> bool:
        """Whether anything can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    def send(self, data: bytes) -> None:
        """Send bytes at once; what the socket does not take, the transport sends later."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        unsent = transport.get_write_buffer_size()
        if self._fd is not None and unsent == 0:
            try:
                sent = os.write(self._fd, data)
            except BlockingIOError:
                sent = 0
            except OSError:
                transport.abort()  # reset by the peer; connection_lost follows
                return
            if sent == len(data):
                return
            data = data[sent:]
        if unsent > _MAX_UNSENT_BYTES:
            transport.abort()  # the client has stopped reading
            return
        transport.write(data)

    def send_head(self, status: int, headers: str) -> None:
        """Send a response's head; ``headers`` are whole lines with their line ends."""
        self.send(self.head(status, headers))

    def head(self, status: int, headers: str) -> bytes:
        """Return a response's head."""
        close = "" if self.request is None or self.request.keep_alive else "connection: close\r\n"
        return f"HTTP/1.1 {status} {_reason(status)}\r\ndate: {_date()}\r\nserver: distbench-sim\r\n{headers}{close}\r\n".encode(
            "latin-1"
        )

    def respond(
        self, status: int, body: bytes, content_type: str = "application/json", headers: str = ""
    ) -> None:
        """Send a whole response and go on to the next request."""
        head = self.head(status, f"content-length: {len(body)}\r\ncontent-type: {content_type}\r\n{headers}")
        bodiless = self.request is not None and self.request.method == "HEAD"
        self.send(head if bodiless else head + body)
        self.finish()

    def finish(self) -> None:
        """The response is sent: close, or take the next request, or wait for one."""
        request, self.request = self.request, None
        if request is None or not request.keep_alive:
            self.close()
        elif self._queue:
            self._loop.call_soon(self._handle_next)
        elif self.is_open:
            self._idle_timer = self._loop.call_later(self._limits.keep_alive_timeout_s, self.close)

    def close(self) -> None:
        """Close after what was given to the transport is sent."""
        if self._transport is not None:
            self._transport.close()

    def reset(self) -> None:
        """Break the connection with a TCP reset."""
        transport = self._transport
        if transport is None:
            return
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _SO_LINGER_RESET)
        transport.abort()

    def _handle_next(self) -> None:
        if self.request is None and self._queue and self.is_open:
            self.request = self._queue.popleft()
            self._handler.handle(self, self.request)

    def _refuse(self, status: int, text: str) -> None:
        """Answer what could not be read, and close."""
        if not self.is_open:
            return
        body = text.encode()
        head = (
            f"content-length: {len(body)}\r\ncontent-type: text/plain; charset=utf-8\r\nconnection: close\r\n"
        )
        if self.request is None:
            self.send(self.head(status, head) + body)
        self.close()

    def _cancel_idle_timer(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None


def _path(target: bytes) -> str:
    """Return the path of a request target, in origin or absolute form."""
    try:
        path = httptools.parse_url(target).path
    except httptools.HttpParserInvalidURLError:
        return target.decode("latin-1")
    return str((path or b"/").decode("latin-1"))


def _reason(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"


class _DateCache:
    """The Date header, made once a second."""

    second: int = 0
    text: str = ""


def _date() -> str:
    now = int(time.time())
    if now != _DateCache.second:
        _DateCache.second, _DateCache.text = now, formatdate(now, usegmt=True)
    return _DateCache.text
