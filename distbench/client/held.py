"""Requests that may not be sent yet: they follow an answer still to come, or their time has not come (floor F3)."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from distbench.client.work import Work

# A request that is drawn after the answer it follows has ended still thinks from that end, if it was among the last so many.
_REMEMBERED_ENDS = 8_192


class Held:
    """
    The requests held back by a source, without their bodies: thousands may be, and a conversation's later turns are the longest.

    A request that follows one which this client does not send is not held back: nobody here would see that answer.
    """

    def __init__(self) -> None:
        self._open: set[int] = set()
        self._followers: dict[int, list[Work]] = {}
        self._num_followers = 0
        self._ended_ns: dict[int, int] = {}
        self._timed: list[tuple[int, int, Work]] = []

    def __len__(self) -> int:
        """Return how many are held back."""
        return self._num_followers + len(self._timed)

    def __iter__(self) -> Iterator[Work]:
        """Yield all that are held back, in no order."""
        for works in self._followers.values():
            yield from works
        for _, _, work in self._timed:
            yield work

    def hold(self, work: Work, now_ns: int) -> bool:
        """Register a request; return whether it is held back."""
        self._open.add(work.request_id)
        if work.follows is not None and work.follows in self._open:
            work.body = b""
            self._followers.setdefault(work.follows, []).append(work)
            self._num_followers += 1
            return True
        due_ns = work.not_before_ns
        if work.follows is not None and work.think_ns:
            ended_ns = self._ended_ns.get(work.follows, 0)
            due_ns = max(ended_ns + work.think_ns, due_ns or 0)
        return self.hold_until(work, due_ns, now_ns)

    def hold_until(self, work: Work, due_ns: int | None, now_ns: int) -> bool:
        """Hold a request back until a time; return False where that has come already (or is None)."""
        if due_ns is None or due_ns <= now_ns:
            return False
        work.body = b""
        heapq.heappush(self._timed, (due_ns, work.request_id, work))
        return True

    def ended(self, request_id: int, now_ns: int) -> list[Work]:
        """Note that an answer has ended; return the requests that may be sent now because of it."""
        self._open.discard(request_id)
        self._ended_ns[request_id] = now_ns
        if len(self._ended_ns) > _REMEMBERED_ENDS:
            del self._ended_ns[next(iter(self._ended_ns))]
        followers = self._followers.pop(request_id, None)
        if not followers:
            return []
        self._num_followers -= len(followers)
        return [
            work
            for work in followers
            if not self.hold_until(work, max(now_ns + work.think_ns, work.not_before_ns or 0), now_ns)
        ]

    def pop_due(self, now_ns: int) -> Work | None:
        """Take out a request whose time has come; None where there is none."""
        if self._timed and self._timed[0][0] <= now_ns:
            return heapq.heappop(self._timed)[2]
        return None

    @property
    def next_due_ns(self) -> int | None:
        """Time of the next request that only waits for its time; None where there is none."""
        return self._timed[0][0] if self._timed else None
