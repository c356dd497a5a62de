"""
When a request has waited too long (floor F2, pure).

The first-token limit cannot be judged by the wire, which knows nothing of tokens: a function given from outside is asked, and only
when a limit has been reached, never per read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from distbench.core.records import ErrorKind
from distbench.units import s_to_ns
from distbench.wire.base import Exchange, Timeouts
from distbench.wire.faults import WireFault

TokenSeen = Callable[[Sequence[bytes]], bool]
"""Tells from the body pieces so far whether a token is among them."""


class Deadlines:
    """The limits of a request after it was sent, judged on an Exchange that is under way."""

    __slots__ = ("_first_token_ns", "_idle_ns", "_seen_in", "_timeouts", "_token_seen", "_total_ns")

    def __init__(self, timeouts: Timeouts, token_seen: TokenSeen) -> None:
        self._timeouts = timeouts
        self._token_seen = token_seen
        self._first_token_ns = _limit_ns(timeouts.first_token_s)
        self._idle_ns = _limit_ns(timeouts.idle_s)
        self._total_ns = _limit_ns(timeouts.total_s)
        self._seen_in: Exchange | None = None

    def next_look_ns(self, exchange: Exchange) -> int | None:
        """Return the earliest time at which a limit may be reached; None where there is no limit."""
        sent_ns = exchange.sent_ns or 0
        looks = []
        if self._total_ns is not None:
            looks.append(sent_ns + self._total_ns)
        if self._first_token_ns is not None and self._seen_in is not exchange:
            looks.append(sent_ns + self._first_token_ns)
        if self._idle_ns is not None:
            looks.append(_last_sign_ns(exchange) + self._idle_ns)
        return min(looks, default=None)

    def judge(self, exchange: Exchange, now_ns: int) -> tuple[WireFault | None, int | None]:
        """
        Return the limit that has been reached, or None and the time of the next look.

        Args:
            exchange: The request under way, everything that the kernel held taken in.
            now_ns: The time now.
        """
        sent_ns = exchange.sent_ns or 0
        limits = self._timeouts
        if self._total_ns is not None and now_ns >= sent_ns + self._total_ns:
            return WireFault(
                ErrorKind.TOTAL_TIMEOUT, f"no end of the answer within {limits.total_s:g} s"
            ), None
        if self._seen_in is not exchange and self._token_seen(exchange.body):
            self._seen_in = exchange
        is_seen = self._seen_in is exchange
        if not is_seen and self._first_token_ns is not None and now_ns >= sent_ns + self._first_token_ns:
            return WireFault(
                ErrorKind.FIRST_TOKEN_TIMEOUT, f"no token within {limits.first_token_s:g} s"
            ), None
        last_ns = _last_sign_ns(exchange)
        if is_seen and self._idle_ns is not None and now_ns >= last_ns + self._idle_ns:
            return WireFault(ErrorKind.IDLE_TIMEOUT, f"nothing arrived for {limits.idle_s:g} s"), None
        look_ns = self.next_look_ns(exchange)
        if look_ns is not None and look_ns <= now_ns and self._idle_ns is not None:
            # Silence before the first token is the other limit's matter: look again when it could have become idleness.
            later = [now_ns + self._idle_ns]
            later += [
                sent_ns + limit for limit in (self._total_ns, self._first_token_ns) if limit is not None
            ]
            look_ns = min(each for each in later if each > now_ns)
        return None, look_ns


def any_body(pieces: Sequence[bytes]) -> bool:
    """Take any byte of the body for a token: right for answers that are not streamed."""
    return any(pieces)


def _limit_ns(limit_s: float | None) -> int | None:
    return None if limit_s is None else s_to_ns(limit_s)


def _last_sign_ns(exchange: Exchange) -> int:
    if exchange.stamps_ns:
        return exchange.stamps_ns[-1]
    return exchange.first_byte_ns or exchange.sent_ns or 0
