"""Sending again what the server refused for now (floor F3)."""

from __future__ import annotations

import time

from distbench.core.openai_api import parse_retry_after
from distbench.wire.base import Exchange

_RETRYABLE = (429, 503)
_FIRST_DELAY_S = 0.5
_LONGEST_DELAY_S = 30.0


def is_retryable(exchange: Exchange) -> bool:
    """Tell whether the answer says "not now"."""
    return exchange.complete and exchange.status in _RETRYABLE


def retry_delay_s(exchange: Exchange, attempt: int) -> float:
    """
    Return how long to wait before the next attempt, at most 30 s.

    The server's Retry-After counts, in seconds or as a date; without one the wait doubles from half a second.

    Args:
        exchange: The refused attempt.
        attempt: Number of retries before this one.
    """
    asked_s = parse_retry_after(exchange.headers.get("retry-after"), time.time())
    if asked_s is None:
        asked_s = _FIRST_DELAY_S * 2 ** min(attempt, 10)
    return min(_LONGEST_DELAY_S, asked_s)


def carry_over(earlier: Exchange | None, later: Exchange) -> None:
    """Add to a later attempt what belongs to the request as a whole: its first sending, and all that was sent and read."""
    if earlier is None:
        return
    later.first_sent_ns = earlier.first_sent_ns
    later.attempts += earlier.attempts
    later.reconnects += earlier.reconnects
    later.reads += earlier.reads
    later.bytes_received += earlier.bytes_received
