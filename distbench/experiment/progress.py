"""Adds up the counters of all clients into one state of a level (floor F4)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from distbench.client.messages import Progress
from distbench.core.levels import LevelSpec
from distbench.experiment.observer import LevelProgress

_RATE_SPAN_S = 4.0


class LevelTally:
    """
    The newest counters of every client of one level.

    A lost client's last counters stay in the sums of what was done, and leave the sums of what is held.
    """

    def __init__(self, spec: LevelSpec, *, start_s: float) -> None:
        self._spec = spec
        self._start_s = start_s
        self._latest: dict[int, Progress] = {}
        self._lost: set[int] = set()
        self._tokens: deque[tuple[float, int, int]] = deque()  # (time, output tokens, requests done)

    def update(self, progress: Progress, now_s: float) -> None:
        """Take a client's newest counters."""
        self._latest[progress.client] = progress
        self._tokens.append((now_s, self._sum(lambda p: p.output_tokens), self.done))
        while now_s - self._tokens[0][0] > _RATE_SPAN_S:
            self._tokens.popleft()

    def lose(self, client: int) -> None:
        """Mark a client as lost."""
        self._lost.add(client)

    @property
    def failed(self) -> int:
        """Failed measured requests of all clients so far."""
        return self._sum(lambda p: p.failed)

    @property
    def done(self) -> int:
        """Measured requests that ended in any way so far."""
        return self._sum(lambda p: p.ok + p.failed + p.cut + p.dropped)

    @property
    def answered(self) -> tuple[int, int, int]:
        """What changes when the servers answer: requests that went well, warm-up requests, tokens."""
        return (
            self._sum(lambda p: p.ok),
            self._sum(lambda p: p.warmup_done),
            self._sum(lambda p: p.output_tokens),
        )

    def state(self, now_s: float, running: float | None, waiting: float | None) -> LevelProgress:
        """Return the sums."""
        held = [p for client, p in self._latest.items() if client not in self._lost]
        errors = [p.last_error for p in self._latest.values() if p.last_error is not None]
        return LevelProgress(
            asked=self._spec.connections,
            connected=sum(p.connected for p in held),
            in_flight=sum(p.in_flight for p in held),
            planned=self._spec.requests,
            warmup_done=self._sum(lambda p: p.warmup_done),
            warmup_planned=self._spec.warmup,
            sent=self._sum(lambda p: p.sent),
            ok=self._sum(lambda p: p.ok),
            failed=self.failed,
            cut=self._sum(lambda p: p.cut),
            dropped=self._sum(lambda p: p.dropped),
            output_tokens_per_s=self._rate(1),
            elapsed_s=max(0.0, now_s - self._start_s),
            remaining_s=self._remaining_s(now_s),
            running=running,
            waiting=waiting,
            lost_clients=len(self._lost),
            last_error=errors[-1] if errors else None,
        )

    def _sum(self, field: Callable[[Progress], int]) -> int:
        return sum(field(p) for p in self._latest.values())

    def _rate(self, index: int) -> float | None:
        """Return the rate per second of column index over the last seconds; None before two counters came."""
        if len(self._tokens) < 2:
            return None
        first, last = self._tokens[0], self._tokens[-1]
        span_s = last[0] - first[0]
        return (last[index] - first[index]) / span_s if span_s > 0 else None

    def _remaining_s(self, now_s: float) -> float | None:
        estimates = []
        if self._spec.duration_s is not None:
            estimates.append(self._start_s + self._spec.duration_s - now_s)
        done_per_s = self._rate(2)
        if self._spec.requests is not None and done_per_s:
            estimates.append((self._spec.requests - self.done) / done_per_s)
        return max(0.0, min(estimates)) if estimates else None
