"""
Opening a connection: names to addresses, TCP, the way through a proxy, TLS (floor F2).
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import ipaddress
import socket
import ssl
import urllib.request
from typing import Any
from urllib.parse import unquote, urlsplit

from distbench.core.records import ErrorKind
from distbench.wire import stamps
from distbench.wire.base import WireTarget
from distbench.wire.faults import WireFault, connecting_fault
from distbench.wire.head import HeadError, end_of_head, parse_head
from distbench.wire.request_head import USER_AGENT, RequestHead
from distbench.wire.tls import TlsPipe, client_context

_HANDSHAKE_READ_BYTES = 16_384
_Address = tuple[socket.AddressFamily, Any]


@dataclasses.dataclass(slots=True)
class Link:
    """
    An open connection.

    Attributes:
        sock: Non-blocking, connected, owned by whoever holds the link.
        tls: The TLS state; None for plain http.
        stamped: Reads bear kernel stamps.
        local_address: "ip:port" of our end.
    """

    sock: socket.socket
    tls: TlsPipe | None
    stamped: bool
    local_address: str


@dataclasses.dataclass(frozen=True, slots=True)
class Proxy:
    """An http proxy of the environment; authorization is the value of a header and a secret."""

    host: str
    port: int
    authorization: str | None = dataclasses.field(default=None, repr=False)

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        """Headers that only the proxy reads."""
        return () if self.authorization is None else (("Proxy-Authorization", self.authorization),)


def environment_proxy(scheme: str, authority: str) -> Proxy | None:
    """
    Return the proxy that the environment names for a target; None where it names none or NO_PROXY exempts the target.

    Raises:
        WireFault: the environment names a proxy that is not plain http.
    """
    found = urllib.request.getproxies()
    text = found.get(scheme) or found.get("all")
    if not text or urllib.request.proxy_bypass(authority):
        return None
    parts = urlsplit(text if "://" in text else f"http://{text}")
    if parts.scheme != "http" or not parts.hostname:
        raise WireFault(ErrorKind.CONNECT, f"the environment's proxy for {scheme} is not an http:// proxy")
    authorization = None
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        authorization = "Basic " + base64.b64encode(pair.encode()).decode("ascii")
    return Proxy(parts.hostname, parts.port or 80, authorization)


class Dialer:
    """
    Opens connections to one target; its name is resolved once.

    Attributes:
        head: The request head that fits the way to the target.
    """

    def __init__(self, target: WireTarget) -> None:
        """
        Prepare; nothing is opened.

        Raises:
            PlanError: the URL or a header cannot be used.
        """
        self._target = target
        self._addresses: list[_Address] | None = None
        self._proxy: Proxy | None = None
        self._proxy_fault: WireFault | None = None
        self.head = RequestHead(target)
        if target.trust_env:
            try:
                self._proxy = environment_proxy("https" if self.head.is_tls else "http", self.head.authority)
            except WireFault as fault:
                self._proxy_fault = fault
        if self._proxy is not None and not self.head.is_tls:
            self.head = RequestHead(target, absolute=True, proxy_headers=self._proxy.headers)

    async def dial(self) -> Link:
        """
        Connect within the target's limit, TLS included.

        Raises:
            WireFault: it did not work; kind and text say why.
        """
        if self._proxy_fault is not None:
            raise self._proxy_fault
        where = self.head.authority if self._proxy is None else f"proxy {self._proxy.host}:{self._proxy.port}"
        limit_s = self._target.timeouts.connect_s
        try:
            async with asyncio.timeout(limit_s) as timeout:
                return await self._dial(where)
        except (OSError, ssl.SSLError) as error:
            if isinstance(error, TimeoutError) and timeout.expired():
                text = f"cannot connect to {where}: no connection within {limit_s:g} s"
                raise WireFault(ErrorKind.CONNECT_TIMEOUT, text) from None
            raise connecting_fault(error, where) from None

    async def _dial(self, where: str) -> Link:
        stamps.keep_stamping()
        sock = await self._open(where)
        try:
            tls = None
            if self.head.is_tls:
                if self._proxy is not None:
                    await _tunnel(sock, self.head.authority, self._proxy)
                context = client_context(self._target.ca_file, self._target.insecure)
                tls = TlsPipe(context, self.head.host)
                await _handshake(sock, tls, self.head.authority)
            stamped = stamps.enable(sock)
            host, port = sock.getsockname()[:2]
        except BaseException:
            sock.close()
            raise
        return Link(sock, tls, stamped, f"[{host}]:{port}" if ":" in host else f"{host}:{port}")

    async def _open(self, where: str) -> socket.socket:
        """Try the addresses in turn; the error of the last one is told."""
        loop = asyncio.get_running_loop()
        if self._addresses is None:
            host, port = (
                (self.head.host, self.head.port)
                if self._proxy is None
                else (self._proxy.host, self._proxy.port)
            )
            self._addresses = await _resolve(host, port)
        last: OSError | None = None
        for family, address in self._addresses:
            sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            try:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                await loop.sock_connect(sock, address)
            except OSError as error:
                sock.close()
                last = error
            except BaseException:
                sock.close()
                raise
            else:
                return sock
        raise last or WireFault(ErrorKind.CONNECT, f"cannot resolve {where}: no address")


async def _resolve(host: str, port: int) -> list[_Address]:
    try:
        version = ipaddress.ip_address(host).version
    except ValueError:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return [(family, address) for family, _, _, _, address in found]
    return [(socket.AF_INET6, (host, port, 0, 0))] if version == 6 else [(socket.AF_INET, (host, port))]


async def _handshake(sock: socket.socket, tls: TlsPipe, where: str) -> None:
    loop = asyncio.get_running_loop()
    received = b""
    while True:
        try:
            done, output = tls.handshake_step(received)
        except ssl.SSLError as error:
            # The alert tells the server why; it matters to its log only, so its sending may fail.
            with contextlib.suppress(OSError):
                sock.send(tls.pending_output())
            raise connecting_fault(error, where) from None
        if output:
            await loop.sock_sendall(sock, output)
        if done:
            return
        received = await loop.sock_recv(sock, _HANDSHAKE_READ_BYTES)
        if not received:
            raise WireFault(ErrorKind.TLS, f"{where} closed the connection during the TLS handshake")


async def _tunnel(sock: socket.socket, authority: str, proxy: Proxy) -> None:
    """Ask the proxy for a tunnel to the target."""
    loop = asyncio.get_running_loop()
    headers = [("Host", authority), ("User-Agent", USER_AGENT), *proxy.headers]
    text = "".join(f"{name}: {value}\r\n" for name, value in headers)
    await loop.sock_sendall(sock, f"CONNECT {authority} HTTP/1.1\r\n{text}\r\n".encode("ascii"))
    answer = b""
    try:
        while (end := end_of_head(answer)) < 0:
            received = await loop.sock_recv(sock, _HANDSHAKE_READ_BYTES)
            if not received:
                raise WireFault(ErrorKind.CONNECT, f"the proxy closed the connection to {authority}")
            answer += received
        status = parse_head(answer[:end]).status
    except HeadError as error:
        raise WireFault(ErrorKind.CONNECT, f"the proxy's answer is not HTTP: {error}") from None
    if not 200 <= status < 300:
        raise WireFault(ErrorKind.CONNECT, f"the proxy refused a tunnel to {authority}: status {status}")
