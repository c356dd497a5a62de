"""
The head of a request, built once per target (floor F2). What differs from request to request is two numbers.
"""

from __future__ import annotations

import httpx

from distbench import __version__
from distbench.errors import PlanError
from distbench.wire.base import WireTarget

USER_AGENT = f"distbench/{__version__}"

# Said by the connection itself; a second word on them could only contradict it.
_OURS = frozenset(
    {"content-length", "transfer-encoding", "connection", "x-request-id", "expect", "upgrade", "trailer"}
)
_REQUEST_ID = "X-Request-Id"


def request_headers(target: WireTarget) -> list[tuple[str, str]]:
    """
    Return the headers that all requests to a target bear, defaults first; Host and the two numbers are not among them.

    A header of the user's replaces the default of the same name. Compression is declined: a compressor would hold tokens back.

    Raises:
        PlanError: a header cannot be sent; the text names it and never shows its value.
    """
    problems = [
        f"header {name!r} cannot be sent: a name is a token, a value has no line ends"
        for name, value in target.headers
        if not _is_token(name) or any(ord(c) < 32 and c != "\t" for c in value) or "\x7f" in value
    ]
    if problems:
        raise PlanError(problems)
    given = {name.lower() for name, _ in target.headers}
    defaults = [
        ("Accept", "text/event-stream" if target.streaming else "application/json"),
        ("Accept-Encoding", "identity"),
        ("User-Agent", USER_AGENT),
        ("Content-Type", "application/json"),
    ]
    headers = [(name, value) for name, value in defaults if name.lower() not in given]
    headers += [(name, value) for name, value in target.headers if name.lower() not in _OURS]
    headers.append(("Connection", "keep-alive" if target.keepalive else "close"))
    return headers


class RequestHead:
    """
    The bytes of POST requests to one target.

    Attributes:
        host: Name or address to connect to, without brackets; port: its port.
        is_tls: The URL is https.
        authority: "host:port" for CONNECT and for messages.
    """

    __slots__ = ("_prefix", "authority", "host", "is_tls", "port")

    def __init__(
        self, target: WireTarget, *, absolute: bool = False, proxy_headers: tuple[tuple[str, str], ...] = ()
    ) -> None:
        """
        Build the constant part.

        Args:
            target: Where to.
            absolute: Write the whole URL into the request line, as plain-http proxies want it.
            proxy_headers: Headers for the proxy that reads this head.

        Raises:
            PlanError: the URL or a header cannot be used.
        """
        try:
            request = httpx.Request("POST", target.url)
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise PlanError([f"the target's URL cannot be used: {error}"]) from None
        url = request.url
        if url.scheme not in ("http", "https") or not url.host:
            raise PlanError(["the target's URL must be http:// or https:// with a host"])
        self.is_tls = url.scheme == "https"
        self.host = url.raw_host.decode("ascii")
        self.port = url.port or (443 if self.is_tls else 80)
        self.authority = f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
        host_value = request.headers["host"].rpartition("@")[2]
        user_host = [value for name, value in target.headers if name.lower() == "host"]
        line = f"http://{host_value}".encode("ascii") + url.raw_path if absolute else url.raw_path
        headers = [("Host", user_host[0] if user_host else host_value), *proxy_headers]
        headers += [(name, value) for name, value in request_headers(target) if name.lower() != "host"]
        text = "".join(f"{name}: {value}\r\n" for name, value in headers)
        self._prefix = b"POST " + line + b" HTTP/1.1\r\n" + _encode(text) + f"{_REQUEST_ID}: ".encode()

    def request(self, request_id: int, body: bytes) -> bytes:
        """Return all bytes of one request, to be sent in one piece."""
        return b"%b%d\r\nContent-Length: %d\r\n\r\n%b" % (self._prefix, request_id, len(body), body)


def _encode(text: str) -> bytes:
    return text.encode("ascii") if text.isascii() else text.encode("utf-8", "replace")


def _is_token(name: str) -> bool:
    return bool(name) and name.isascii() and all(c.isalnum() or c in "!#$%&'*+-.^_`|~" for c in name)
