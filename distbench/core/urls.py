"""
Base URLs: what the user typed, the endpoint it means, and the server's root beside it (floor F1).

A base URL may or may not end in /v1; the test is on whole path segments, so that /av1 is a prefix like any other. No message of
this module repeats what stands before an @ in a URL, since that is a credential.
"""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import SplitResult, quote, urlsplit

_ENDPOINT_PATHS = {"chat": "/chat/completions", "completions": "/completions"}
_DEFAULT_PORTS = {"http": 80, "https": 443}
_HOST_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_.])?\Z")
_CONTROL_OR_SPACE = re.compile(r"[\x00-\x20\x7f]")
_PATH_SAFE = "%:@!$&'()*+,;=~-._"
_API_SEGMENT = "v1"


def normalize_base_url(url: str) -> str:
    """
    Return the API's base URL, without a slash at its end: http://h:1, http://h:1/, http://h:1/v1 and http://h:1/v1/ are the same.

    A path whose last segment is exactly "v1" is kept; to any other path "/v1" is appended. Scheme and host are lower case, the
    port is left out where it is the scheme's own, so that equal targets give equal texts.

    Raises:
        ValueError: no usable URL; one sentence that says what is wrong and what to write, and never shows credentials.
    """
    shown = display_url(url)
    text = url.strip()
    problem = _problem_before_splitting(text, shown)
    if problem is not None:
        raise ValueError(problem)
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"{shown!r} is not a URL: {error}") from None
    problem = _problem_of(parts, port, text, shown)
    if problem is not None:
        raise ValueError(problem)
    segments = [segment for segment in parts.path.split("/") if segment]
    if segments[-1:] != [_API_SEGMENT]:
        segments.append(_API_SEGMENT)
    path = "".join("/" + quote(segment, safe=_PATH_SAFE) for segment in segments)
    return _root(parts.scheme, _host(parts.hostname or "", shown), port) + path


def endpoint_url(base_url: str, endpoint: str) -> str:
    """Return the full URL of an endpoint (chat | completions) under a normalized base URL."""
    return base_url + _ENDPOINT_PATHS[endpoint]


def server_root(base_url: str) -> str:
    """Return scheme, host and port of a base URL; /metrics and /health hang on it, whatever the API's prefix."""
    parts = urlsplit(base_url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def display_url(url: str) -> str:
    """Return any URL in a form fit for messages: without user, password, query and fragment."""
    bare = re.split(r"[?#]", url.strip(), maxsplit=1)[0]
    scheme, separator, rest = bare.partition("://")
    if not separator:
        scheme, rest = "", bare
    # A password may hold an unquoted slash or question mark: everything up to the last @ is treated as secret.
    if "@" in url:
        rest = re.split(r"[?#]", url.strip().rpartition("@")[2], maxsplit=1)[0]
    return _CONTROL_OR_SPACE.sub("?", scheme + separator + rest)


def _problem_before_splitting(text: str, shown: str) -> str | None:
    if not text:
        return "the URL is empty; write it like http://host:8000"
    scheme, separator, rest = text.partition("://")
    if "@" in (rest if separator else scheme).split("/", 1)[0] or "@" in text.split("?")[0]:
        return (
            f"a URL with a user or password in it is not accepted ({shown}); put the key into an environment variable and "
            "name it with --api-key-env"
        )
    if not separator:
        return f"{shown!r} must begin with http:// or https://"
    if _CONTROL_OR_SPACE.search(text):
        return f"{shown!r} holds a space or a control character"
    return None


def _problem_of(parts: SplitResult, port: int | None, text: str, shown: str) -> str | None:
    """Return what is wrong with a URL that could be split, or None."""
    if parts.scheme not in _DEFAULT_PORTS:
        return f"{shown!r} must begin with http:// or https://, not {parts.scheme}://"
    if not parts.hostname:
        return f"{shown!r} has no host; write it like http://host:8000"
    if "?" in text or "#" in text:
        return f"{shown!r} must be a base URL, without ? or #; fields of the request go into --extra-body"
    if port == 0:
        return f"{shown!r} has port 0, which cannot be connected to"
    if parts.path.rstrip("/").endswith(tuple(_ENDPOINT_PATHS.values())):
        return f"{shown!r} is an endpoint; give the base URL, such as http://host:8000/v1"
    return None


def _host(host: str, shown: str) -> str:
    """Return the host in the form that a resolver and a Host header take; an IPv6 address in brackets."""
    if ":" in host:
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            raise ValueError(f"{shown!r}: {host!r} is not an IPv6 address") from None
        return f"[{host.lower()}]"
    try:
        ascii_host = host if host.isascii() else host.encode("idna").decode("ascii")
    except UnicodeError:
        ascii_host = ""
    if not _HOST_NAME.match(ascii_host):
        raise ValueError(f"{shown!r}: {host!r} is not a host name")
    return ascii_host.lower()


def _root(scheme: str, host: str, port: int | None) -> str:
    if port is None or port == _DEFAULT_PORTS[scheme]:
        return f"{scheme}://{host}"
    return f"{scheme}://{host}:{port}"
