"""
Whether the target is still there while a level runs (floor F4).

A server that is slow, or fails requests, is what is being measured. One that no longer takes connections at all is gone: going on
would only wait for timeouts and count refusals. The difference is told by connecting, and only after nothing has moved for a while.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Hashable, Sequence
from urllib.parse import urlsplit

QUIET_LIMIT_S = 8.0
_CONNECT_LIMIT_S = 2.0
_BETWEEN_TRIES_S = 2.0
# One failure may be a lost packet or a full backlog.
_TRIES = 2


class Vigil:
    """
    Watches one level; not to be used again for the next.

    Args:
        urls: Base URLs of all targets.
        quiet_limit_s: How long nothing may move before the targets are tried.
        now_s: Monotonic seconds.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        quiet_limit_s: float = QUIET_LIMIT_S,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._urls = tuple(urls)
        self._quiet_limit_s = quiet_limit_s
        self._now_s = now_s
        self._state: Hashable = None
        self._next_try_s: float | None = None
        self._failures = 0

    def look(self, state: Hashable) -> str | None:
        """
        Return one sentence when no target takes connections any more; None while there is no reason to think so.

        Args:
            state: Whatever changes when the servers answer, such as counters of tokens.
        """
        now_s = self._now_s()
        if self._next_try_s is None or state != self._state:
            self._state, self._failures = state, 0
            self._next_try_s = now_s + self._quiet_limit_s
            return None
        if now_s < self._next_try_s:
            return None
        self._next_try_s = now_s + _BETWEEN_TRIES_S
        problems = [problem for url in self._urls if (problem := connect_problem(url)) is not None]
        if len(problems) < len(self._urls):
            self._failures = 0
            return None
        self._failures += 1
        if self._failures < _TRIES:
            return None
        return f"{'; '.join(problems)}; the level was ended, what was measured is kept"


def connect_problem(url: str) -> str | None:
    """Return why a URL's server takes no connection, one clause; None where it does."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((parts.hostname or "", port), timeout=_CONNECT_LIMIT_S).close()
    except OSError as error:
        return f"{url} takes no connections any more ({error.strerror or error})"
    return None
