"""
Whether the target is still there while a level runs (floor F4).

A server that is slow, or fails requests, is what is being measured. One that no longer takes connections, or takes them and answers
nothing at all, not even which models it has, is gone or frozen: going on would only wait for timeouts. The difference is told by
asking, and only after nothing has moved for a while.
"""

from __future__ import annotations

import dataclasses
import socket
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from urllib.parse import urlsplit

import httpx

QUIET_LIMIT_S = 8.0
FROZEN_LIMIT_S = 20.0
"""Without one token for so long, a server that answers nothing else either is frozen; a long prompt may take as long."""

_CONNECT_LIMIT_S = 2.0
_ANSWER_LIMIT_S = 4.0
_BETWEEN_TRIES_S = 2.0
# One failure may be a lost packet or a full backlog.
_TRIES = 2
# A try that is decided at once is waited for; another goes on beside the level.
_PATIENCE_S = 0.2


class Vigil:
    """
    Watches one level; not to be used again for the next.

    Args:
        urls: Base URLs of all targets.
        quiet_limit_s: How long nothing may move before the targets are tried.
        frozen_limit_s: How long nothing may move before a target that only takes connections counts as gone.
        now_s: Monotonic seconds.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        quiet_limit_s: float = QUIET_LIMIT_S,
        frozen_limit_s: float = FROZEN_LIMIT_S,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._urls = tuple(urls)
        self._quiet_limit_s = quiet_limit_s
        self._frozen_limit_s = frozen_limit_s
        self._now_s = now_s
        self._state: Hashable = None
        self._moved_s: float | None = None
        self._next_try_s = 0.0
        self._try: _Try | None = None
        self._failures = 0

    def look(self, state: Hashable) -> str | None:
        """
        Return one sentence when no target answers any more; None while there is no reason to think so.

        Args:
            state: Whatever changes when the servers answer, such as counters of tokens.
        """
        now_s = self._now_s()
        if self._moved_s is None or state != self._state:
            self._state, self._moved_s = state, now_s
            self._failures, self._try = 0, None
            self._next_try_s = now_s + self._quiet_limit_s
            return None
        if self._try is None:
            if now_s < self._next_try_s:
                return None
            self._try = _Try(self._urls)
        problems = self._try.problems(_PATIENCE_S)
        if problems is None:
            return None
        self._try = None
        self._next_try_s = now_s + _BETWEEN_TRIES_S
        is_gone = all(problem is not None for problem in problems)
        is_frozen = any(problem is not None and problem.is_frozen for problem in problems)
        if not is_gone or (is_frozen and now_s - self._moved_s < self._frozen_limit_s):
            self._failures = 0
            return None
        self._failures += 1
        if self._failures < _TRIES:
            return None
        texts = "; ".join(problem.text for problem in problems if problem is not None)
        return f"{texts}; the level was ended, what was measured is kept"


@dataclasses.dataclass(frozen=True, slots=True)
class Problem:
    """
    Why a target is of no use now.

    Attributes:
        text: One clause.
        is_frozen: It takes connections all the same.
    """

    text: str
    is_frozen: bool = False


class _Try:
    """One try of all targets, on a thread of its own: a frozen server must not hold up the level's rows."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._problems: list[Problem | None] = []
        self._thread = threading.Thread(target=self._run, args=(urls,), name="distbench-vigil", daemon=True)
        self._thread.start()

    def problems(self, timeout_s: float) -> list[Problem | None] | None:
        """Return each target's problem, None for one that answers; None while it is not decided."""
        self._thread.join(timeout_s)
        return None if self._thread.is_alive() else self._problems

    def _run(self, urls: Sequence[str]) -> None:
        self._problems = [connect_problem(url) or _answer_problem(url) for url in urls]


def connect_problem(url: str) -> Problem | None:
    """Return why a URL's server takes no connection; None where it does."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((parts.hostname or "", port), timeout=_CONNECT_LIMIT_S).close()
    except OSError as error:
        return Problem(f"{url} takes no connections any more ({error.strerror or error})")
    return None


def _answer_problem(url: str) -> Problem | None:
    """Return that a server answers nothing; a refusal, or anything else that it says, is an answer."""
    try:
        # Without the key: being refused is enough. The certificate was judged before the load.
        httpx.get(f"{url}/models", timeout=_ANSWER_LIMIT_S, verify=False, trust_env=False)
    except httpx.TimeoutException:
        text = (
            f"{url} takes connections but answers nothing, not even its models within {_ANSWER_LIMIT_S:g} s"
        )
        return Problem(text, is_frozen=True)
    except (httpx.HTTPError, httpx.InvalidURL):
        return None
    return None
