"""
The head of an HTTP/1.x response: its parsing, and how the body behind it is framed (floor F2).

Lenient where servers are sloppy and nothing can be misread (bare LF, missing reason phrase), strict where a guess could put the
end of a body in the wrong place (lengths that contradict each other, codings that are not known).
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import re

MAX_HEAD_BYTES = 65_536

_STATUS_LINE = re.compile(rb"HTTP/(1)\.(\d) ([1-9]\d\d)(?: .*)?\Z", re.DOTALL)
_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+\Z")
_END_OF_HEAD = re.compile(rb"\r?\n\r?\n")
_START = b"HTTP/"
_TLS_RECORD = (b"\x15\x03", b"\x16\x03")


class HeadError(Exception):
    """The bytes are no response head; the text says why."""


class TlsSpokenError(HeadError):
    """The peer answered a plain request with a TLS record."""


class Framing(enum.Enum):
    """How the end of a body is known."""

    NONE = "none"
    LENGTH = "length"
    CHUNKED = "chunked"
    CLOSE = "close"


@dataclasses.dataclass(frozen=True, slots=True)
class Head:
    """
    A parsed response head.

    Attributes:
        headers: Names in lower case; repeated ones joined by ", ". Shared by responses with the same head: not to be changed.
        framing: How the body ends; length is None but for Framing.LENGTH.
        keepalive: The peer lets the connection be used again after this response.
    """

    status: int
    headers: dict[str, str]
    framing: Framing
    length: int | None
    keepalive: bool


def end_of_head(data: bytes) -> int:
    """
    Return the position behind the blank line that ends a head, or -1 where it has not come yet.

    Raises:
        HeadError: the bytes are no HTTP/1.x response, or the head is too long. Told as early as it can be known.
    """
    if not data.startswith(_START):
        if data[:2] in _TLS_RECORD:
            raise TlsSpokenError("the server speaks TLS on this port; use https://")
        if not _START.startswith(data[: len(_START)]):
            raise HeadError(f"not an HTTP response: it begins with {data[:40]!r}")
    match = _END_OF_HEAD.search(data)
    if (match.end() if match else len(data)) > MAX_HEAD_BYTES:
        raise HeadError(f"the response head is longer than {MAX_HEAD_BYTES} bytes")
    return match.end() if match else -1


# Most servers send the same head for a second, until its date changes.
@functools.lru_cache(maxsize=64)
def parse_head(head: bytes) -> Head:
    """
    Parse a whole head, blank line included; equal heads are parsed once.

    Raises:
        HeadError: it cannot be understood, or leaves the end of the body in doubt.
    """
    lines = head.split(b"\n")
    match = _STATUS_LINE.match(lines[0].rstrip(b"\r"))
    if match is None:
        raise HeadError(f"not an HTTP/1.x status line: {lines[0][:60]!r}")
    status = int(match.group(3))
    headers = _parse_headers(lines[1:])
    framing, length = _framing(status, headers)
    connection = {token.strip() for token in headers.get("connection", "").lower().split(",")}
    is_old = match.group(2) == b"0"
    keepalive = "keep-alive" in connection if is_old else "close" not in connection
    return Head(status, headers, framing, length, keepalive and framing is not Framing.CLOSE)


def _parse_headers(lines: list[bytes]) -> dict[str, str]:
    headers: dict[str, str] = {}
    last: str | None = None
    for raw in lines:
        line = raw.rstrip(b"\r")
        if not line:
            continue
        if line[:1] in b" \t":
            # A folded line, obsolete but legal: it continues the value before it.
            if last is None:
                raise HeadError("the first header line begins with a space")
            headers[last] = f"{headers[last]} {line.strip().decode('latin-1')}".strip()
            continue
        name, colon, value = line.partition(b":")
        if not colon or not _NAME.match(name):
            raise HeadError(f"not a header line: {line[:60]!r}")
        last = name.decode("ascii").lower()
        text = value.strip(b" \t").decode("latin-1")
        headers[last] = f"{headers[last]}, {text}" if last in headers else text
    return headers


def _framing(status: int, headers: dict[str, str]) -> tuple[Framing, int | None]:
    if status < 200 or status in (204, 304):
        return Framing.NONE, None
    codings = [coding.strip().lower() for coding in headers.get("transfer-encoding", "").split(",")]
    codings = [coding for coding in codings if coding not in ("", "identity")]
    if codings == ["chunked"]:
        return Framing.CHUNKED, None
    if codings:
        raise HeadError(f"transfer coding {', '.join(codings)!r} is not supported")
    if "content-length" not in headers:
        return Framing.CLOSE, None
    lengths = {length.strip() for length in headers["content-length"].split(",")}
    if len(lengths) > 1:
        raise HeadError(f"contradicting Content-Length: {headers['content-length'][:60]!r}")
    text = lengths.pop()
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise HeadError(f"not a Content-Length: {text[:60]!r}")
    return Framing.LENGTH, int(text)
