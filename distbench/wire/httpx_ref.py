"""
The reference connection, over httpx (floor F2): the same Protocol by other people's code, against which the fast one is checked.

Its stamps are those of user space. Reads are counted as httpx hands the body out; heads and framing are not seen and not counted.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from time import monotonic_ns
from typing import Any

import httpx

from distbench.core.records import ErrorKind, Stamp
from distbench.units import NS_PER_S
from distbench.wire.base import Exchange, WireTarget
from distbench.wire.deadlines import Deadlines, TokenSeen, any_body
from distbench.wire.faults import WireFault, connecting_fault, connection_fault, no_answer_fault
from distbench.wire.request_head import RequestHead, request_headers
from distbench.wire.tls import client_context

_CONNECT_EVENTS = ("connection.connect_tcp.started", "connection.connect_unix_socket.started")
_CONNECTED_EVENTS = ("connection.connect_tcp.complete", "connection.start_tls.complete")
_SENT_EVENT = "http11.send_request_headers.started"
_NO_ANSWER = "without sending a response"
_CUT_BODY = ("incomplete", "peer closed", "without sending complete")


class HttpxConnection:
    """One keep-alive connection by httpx; the Protocol and its promises are in wire/base.py."""

    def __init__(self, target: WireTarget, token_seen: TokenSeen | None = None) -> None:
        """
        Prepare; nothing is opened.

        Args:
            target: Where to, and the limits.
            token_seen: Asked when a limit has been reached whether a token is among the body pieces; None: any byte is one.

        Raises:
            PlanError: the URL or a header cannot be used.
        """
        self._target = target
        self._head = RequestHead(target)
        self._headers = request_headers(target)
        self._deadlines = Deadlines(target.timeouts, token_seen or any_body)
        self._client: httpx.AsyncClient | None = None
        self._partial: Exchange | None = None
        self._has_served = False
        self._opened: list[str] = []

    @property
    def connected(self) -> bool:
        """True while a kept-alive connection is believed to be open."""
        return self._client is not None and self._has_served

    async def connect(self) -> Exchange | None:
        """Do nothing: httpx connects with its first request, and what that costs is told there."""
        return None

    async def exchange(self, request_id: int, body: bytes) -> Exchange:
        """Send one POST and read the answer to its end; connects first where needed."""
        exchange = Exchange()
        self._partial = None
        is_reused = self.connected
        try:
            fault = await self._attempt(exchange, request_id, body)
            if fault is not None and is_reused and fault.kind is ErrorKind.RESET and exchange.status is None:
                exchange.reconnects += 1
                exchange.end_ns = None
                await self.close()
                fault = await self._attempt(exchange, request_id, body)
        except asyncio.CancelledError:
            exchange.cut = not exchange.complete
            exchange.end_ns = monotonic_ns()
            self._partial = exchange
            await self.close()
            raise
        if fault is not None:
            exchange.error_kind, exchange.error_text = fault.kind, fault.text
            exchange.end_ns = exchange.end_ns or monotonic_ns()
            await self.close()
        self._has_served = fault is None and self._target.keepalive
        return exchange

    def partial(self) -> Exchange | None:
        """Return the exchange that was in flight when the task was cancelled, with cut=True; None where there was none."""
        return self._partial

    async def close(self) -> None:
        """Close the socket; a second call does nothing."""
        client, self._client, self._has_served = self._client, None, False
        if client is not None:
            await client.aclose()

    async def _attempt(self, exchange: Exchange, request_id: int, body: bytes) -> WireFault | None:
        trace = _Trace(exchange)
        try:
            client = self._client = self._client or self._new_client()
            headers = [*self._headers, ("X-Request-Id", str(request_id)), ("Content-Length", str(len(body)))]
            request = client.build_request(
                "POST", self._target.url, headers=headers, content=body, extensions={"trace": trace.event}
            )
            sending = asyncio.ensure_future(client.send(request, stream=True))
            response = await self._within_limits(exchange, sending, trace)
            try:
                return await self._read(exchange, response)
            finally:
                await response.aclose()
        except WireFault as fault:
            return fault
        except (httpx.HTTPError, httpx.StreamError, OSError, ssl.SSLError) as error:
            return self._translate(error, exchange)

    def _new_client(self) -> httpx.AsyncClient:
        target = self._target
        limits = httpx.Limits(
            max_connections=1, max_keepalive_connections=1 if target.keepalive else 0, keepalive_expiry=None
        )
        verify = client_context(target.ca_file, target.insecure) if self._head.is_tls else False
        timeout = httpx.Timeout(None, connect=target.timeouts.connect_s)
        client = httpx.AsyncClient(
            verify=verify,
            trust_env=target.trust_env,
            limits=limits,
            timeout=timeout,
            http1=True,
            http2=False,
            follow_redirects=False,
        )
        client.headers.clear()
        return client

    async def _read(self, exchange: Exchange, response: httpx.Response) -> WireFault | None:
        exchange.first_byte_ns = monotonic_ns()
        exchange.stamp = Stamp.USER
        exchange.status = response.status_code
        for name, value in response.headers.multi_items():
            known = exchange.headers.get(name.lower())
            exchange.headers[name.lower()] = value if known is None else f"{known}, {value}"
        stream = response.extensions.get("network_stream")
        if stream is not None and (address := stream.get_extra_info("client_addr")):
            exchange.local_address = (
                f"[{address[0]}]:{address[1]}" if ":" in address[0] else f"{address[0]}:{address[1]}"
            )
        pieces = response.aiter_raw()
        while True:
            piece = await self._within_limits(exchange, asyncio.ensure_future(_next(pieces)), None)
            now_ns = monotonic_ns()
            if piece is None:
                exchange.complete = True
                exchange.end_ns = now_ns
                return None
            exchange.body.append(piece)
            exchange.stamps_ns.append(now_ns)
            exchange.reads += 1
            exchange.bytes_received += len(piece)
            if exchange.bytes_received > self._target.max_response_bytes:
                cap = self._target.max_response_bytes
                return WireFault(
                    ErrorKind.CLIENT_LIMIT, f"the answer is longer than this client's own cap of {cap} bytes"
                )

    async def _within_limits(
        self, exchange: Exchange, waiting: asyncio.Future[Any], trace: _Trace | None
    ) -> Any:
        """Wait for one step of the exchange, and no longer than its limits allow; httpx itself watches the connecting."""
        try:
            while True:
                look_ns = None if exchange.sent_ns is None else self._deadlines.next_look_ns(exchange)
                limit_s = None if look_ns is None else max(0.0, (look_ns - monotonic_ns()) / NS_PER_S)
                watched = (
                    {waiting} if trace is None or exchange.sent_ns is not None else {waiting, trace.sent}
                )
                done, _ = await asyncio.wait(watched, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
                if waiting in done:
                    return waiting.result()
                if not done:
                    # What has come but was not yet taken in by httpx may still be in time.
                    await asyncio.sleep(0.001)
                    fault, _ = self._deadlines.judge(exchange, monotonic_ns())
                    if fault is not None and not waiting.done():
                        raise fault
        finally:
            if not waiting.done():
                waiting.cancel()
                await asyncio.wait({waiting})
            if trace is not None:
                trace.sent.cancel()

    def _translate(self, error: Exception, exchange: Exchange) -> WireFault:
        where = self._head.authority
        text = str(error)
        if isinstance(error, httpx.ConnectTimeout | httpx.PoolTimeout):
            limit_s = self._target.timeouts.connect_s
            return WireFault(
                ErrorKind.CONNECT_TIMEOUT, f"cannot connect to {where}: no connection within {limit_s} s"
            )
        if exchange.sent_ns is None or isinstance(
            error, httpx.ConnectError | httpx.ProxyError | httpx.UnsupportedProtocol
        ):
            return connecting_fault(error, where)
        if isinstance(error, httpx.RemoteProtocolError):
            if _NO_ANSWER in text:
                return no_answer_fault(tls=self._head.is_tls)
            if exchange.status is not None and any(word in text for word in _CUT_BODY):
                return WireFault(
                    ErrorKind.TRUNCATED, "the server closed the connection before the end of the body"
                )
            return WireFault(ErrorKind.PROTOCOL, f"not valid HTTP/1.1: {text}")
        return connection_fault(error)


class _Trace:
    """Listens to httpcore: when connecting began and ended, and when the request was begun to be sent."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._began_ns: int | None = None
        self.sent: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def event(self, name: str, info: dict[str, Any]) -> None:
        """Take one event of httpcore's trace extension."""
        if name in _CONNECT_EVENTS:
            self._began_ns = monotonic_ns()
        elif name in _CONNECTED_EVENTS and self._began_ns is not None:
            self._exchange.connect_ns = monotonic_ns() - self._began_ns
        elif name == _SENT_EVENT and not self.sent.done():
            now_ns = monotonic_ns()
            self._exchange.sent_ns = now_ns
            if self._exchange.first_sent_ns is None:
                self._exchange.first_sent_ns = now_ns
            self._exchange.attempts += 1
            self.sent.set_result(None)


async def _next(pieces: AsyncIterator[bytes]) -> bytes | None:
    """Return the next piece, or None at the end."""
    return await anext(pieces, None)
