"""
What a server's refusal means: its text found in whatever shape it has, its kind in our words (floor F1).
"""

from __future__ import annotations

import email.utils
import html
import re
from collections.abc import Mapping
from typing import Any

from distbench.core.lenient_json import NotJson, loads
from distbench.core.records import MAX_ERROR_TEXT, ErrorKind
from distbench.core.urls import display_url

_LOOKED_AT_BYTES = 65_536
_TAG = re.compile(r"<(script|style)\b.*?</\1>|<[^>]*>", re.DOTALL | re.IGNORECASE)
_BLANKS = re.compile(r"[\s\x00-\x1f\x7f]+")
_SURROGATES = re.compile(r"[\ud800-\udfff]")
_TEXT_KEYS = ("message", "detail", "error_description", "msg", "reason", "title")

# How servers say that prompt and answer do not fit: vLLM, OpenAI, llama.cpp, TGI, SGLang, TensorRT-LLM, LMDeploy, Ollama.
_OVERFLOW = re.compile(
    r"context_length_exceeded|exceed_context_size|maximum context length|max_model_len|maximum model length"
    r"|(?:exceed\w*|longer than|larger than|greater than|over)[^.]{0,60}\bcontext[ _](?:length|size|window)"
    r"|context[ _](?:length|size|window)[^.]{0,60}exceed"
    r"|`inputs` (?:tokens \+|must have less than)|prompt is too long|input is too long"
    r"|(?:prompt|input)(?: length| tokens?)?[^.]{0,40}exceeds?[^.]{0,40}(?:maximum|max_)[^.]{0,20}(?:length|tokens|input|len)"
    r"|reduce the length of the (?:input|messages|prompt)",
    re.IGNORECASE,
)


def clean_text(text: str) -> str:
    """Return one line of printable text, at most MAX_ERROR_TEXT characters, that any file format can hold."""
    text = _BLANKS.sub(" ", _SURROGATES.sub("\ufffd", text)).strip()
    return text if len(text) <= MAX_ERROR_TEXT else text[: MAX_ERROR_TEXT - 1] + "…"


def is_context_overflow(text: str) -> bool:
    """Tell whether a refusal says that the request does not fit the model's context: the plan's fault, not the server's."""
    return _OVERFLOW.search(text) is not None


def error_in(value: Any) -> str | None:
    """
    Return the text of an error object, or None where a decoded JSON value holds none.

    Known shapes: ``{"error": {"message", "type", "code"}}``, ``{"error": "text"}``, ``{"object": "error", "message"}``,
    ``{"detail": "text" | [{"loc", "msg"}]}``, ``{"message": "text"}``, ``{"errors": [...]}``.
    """
    if not isinstance(value, dict):
        return None
    for key in ("error", "errors", "detail"):
        if value.get(key):
            return _describe(value[key])
    if value.get("object") == "error" or value.get("type") == "error":
        return _describe(value)
    if isinstance(value.get("message"), str) and value["message"]:
        return _describe(value)
    return None


def body_text(body: bytes) -> str:
    """Return what the body of a refusal says to a person: JSON, HTML or plain text; empty where it says nothing."""
    looked_at = body[:_LOOKED_AT_BYTES]
    try:
        value = loads(body if len(body) <= 16 * _LOOKED_AT_BYTES else looked_at)
    except NotJson:
        text = looked_at.decode("utf-8", "replace")
        if "<" in text and ">" in text:
            text = html.unescape(_TAG.sub(" ", text))
        return clean_text(text)
    found = error_in(value)
    if found is None:
        found = value if isinstance(value, str) else looked_at.decode("utf-8", "replace") if value else ""
    return clean_text(found)


def http_error(status: int, headers: Mapping[str, str], body: bytes) -> tuple[ErrorKind, str]:
    """Return kind and text for a final status that is no 2xx."""
    if 300 <= status < 400:
        location = headers.get("location")
        where = f" to {display_url(location)}" if location else ""
        return ErrorKind.HTTP_4XX, clean_text(
            f"HTTP {status}: redirected{where}; redirects are not followed, give the final URL"
        )
    said = body_text(body)
    said = said.removeprefix(f"code {status}: ")
    text = clean_text(f"HTTP {status}: {said}" if said else f"HTTP {status} without a text")
    if status == 429:
        return ErrorKind.RATE_LIMITED, text
    if is_context_overflow(said):
        return ErrorKind.CONTEXT_OVERFLOW, text
    if 400 <= status < 500:
        return ErrorKind.HTTP_4XX, text
    return (ErrorKind.HTTP_5XX if status >= 500 else ErrorKind.PROTOCOL), text


def stream_error(text: str) -> tuple[ErrorKind, str]:
    """Return kind and text for an error that came inside an answer whose status promised success."""
    return (ErrorKind.CONTEXT_OVERFLOW if is_context_overflow(text) else ErrorKind.STREAM_ERROR), clean_text(
        text
    )


def parse_retry_after(value: str | None, now_wall_s: float) -> float | None:
    """
    Read a Retry-After header in either form.

    Args:
        value: Seconds, or an HTTP date; None where the header is missing.
        now_wall_s: Unix time now, for the date form.

    Returns:
        Seconds to wait, >= 0 (a date that has passed is 0); None where there is no readable header.
    """
    if value is None:
        return None
    text = value.strip()
    if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text, re.ASCII):
        return float(text)
    try:
        when = email.utils.parsedate_to_datetime(text)
        return max(0.0, when.timestamp() - now_wall_s)
    except (ValueError, TypeError, OverflowError):
        return None


def _describe(error: Any) -> str:
    """Return an error value as text, its code in front where it has one."""
    if isinstance(error, str):
        return error
    if isinstance(error, list):
        return "; ".join(_describe(each) for each in error[:5])
    if not isinstance(error, dict):
        return str(error)
    text = next((error[key] for key in _TEXT_KEYS if isinstance(error.get(key), str) and error[key]), None)
    if text is None:
        inner = next(
            (error[key] for key in ("error", *_TEXT_KEYS) if isinstance(error.get(key), dict | list)), None
        )
        text = _describe(inner) if inner else str(error.get("type") or error)
    if isinstance(error.get("loc"), list | tuple):
        text = f"{'.'.join(str(part) for part in error['loc'])}: {text}"
    code = error.get("code")
    return (
        f"code {code}: {text}"
        if isinstance(code, str | int) and not isinstance(code, bool) and str(code)
        else text
    )
