"""Base URLs of OpenAI-compatible servers (floor F1)."""

from __future__ import annotations

from urllib.parse import SplitResult, urlsplit, urlunsplit

_ENDPOINT_PATHS = {"chat": "/chat/completions", "completions": "/completions"}


def normalize_base_url(url: str) -> str:
    """
    Return the API's base URL, without a slash at its end: http://h:1, http://h:1/, http://h:1/v1 and http://h:1/v1/ are the same.

    A path whose last segment is exactly "v1" is kept as it is; to any other path "/v1" is appended.

    Raises:
        ValueError: no usable URL; the text says why and never shows credentials.
    """
    parts = _split(url)
    segments = [s for s in parts.path.split("/") if s]
    if not segments or segments[-1] != "v1":
        segments.append("v1")
    return urlunsplit((parts.scheme.lower(), parts.netloc.lower(), "/" + "/".join(segments), "", ""))


def endpoint_url(base_url: str, endpoint: str) -> str:
    """Return the full URL of an endpoint (chat | completions) under a normalized base URL."""
    return base_url + _ENDPOINT_PATHS[endpoint]


def server_root(base_url: str) -> str:
    """Return scheme and host of a base URL; /metrics and /health hang on it, whatever the API's prefix."""
    parts = urlsplit(base_url)
    return urlunsplit((parts.scheme, parts.netloc, "", "", ""))


def _split(url: str) -> SplitResult:
    if "@" in url.split("//", 1)[-1].split("/", 1)[0]:
        raise ValueError(
            "a URL with a user or password in it is not accepted; give the key with --api-key-env NAME"
        )
    parts = urlsplit(url.strip())
    if parts.scheme.lower() not in ("http", "https"):
        raise ValueError(f"{url!r} must begin with http:// or https://")
    if not parts.hostname:
        raise ValueError(f"{url!r} has no host")
    try:
        _ = parts.port
    except ValueError:
        raise ValueError(f"{url!r} has a port that is no number between 0 and 65535") from None
    if parts.query or parts.fragment:
        raise ValueError(f"{url!r} must be a base URL, without ? or #")
    return parts
