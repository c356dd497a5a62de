"""The running figures of a level on one client (floor F3); written by the load's thread only."""

from __future__ import annotations

import numpy as np


class InFlight:
    """
    How many requests are in flight, and the time integral of it.

    What ended counts by its own stamps (sent to last byte), not by when this process got round to it: a late client must not look
    full.
    """

    __slots__ = ("_started_sum_ns", "_total_ns", "count")

    def __init__(self) -> None:
        self.count = 0
        self._total_ns = 0
        self._started_sum_ns = 0

    def begin(self, now_ns: int) -> None:
        """Count a request that is being sent now."""
        self.count += 1
        self._started_sum_ns += now_ns

    def end(self, began_ns: int, sent_ns: int | None, end_ns: int | None) -> None:
        """Take a request off: began_ns as given to begin(); sent_ns and end_ns of its exchange, None: it was never written."""
        self.count -= 1
        self._started_sum_ns -= began_ns
        if sent_ns is not None and end_ns is not None:
            self._total_ns += max(0, end_ns - sent_ns)

    def integral_ns(self, now_ns: int) -> int:
        """Return request-nanoseconds in flight so far."""
        return self._total_ns + self.count * now_ns - self._started_sum_ns


class LevelCounters:
    """
    Everything that progress and health samples are made from.

    Attributes:
        in_flight: Requests in flight.
        connected: Open connections at the last look.
        warmup_done: Finished warm-up requests; sent, ok, failed, cut, dropped: measured ones.
        exchanges, taken: Finished and begun requests of both phases.
        output_tokens: Of finished measured requests; reads, bytes_received: of all finished requests.
        last_error: Kind and text of the latest failure.
        first_sent_ns: Of the first request of the level.
    """

    __slots__ = (
        "bytes_received", "connected", "cut", "dropped", "exchanges", "failed", "first_sent_ns", "in_flight", "lags_ns",
        "last_error", "ok", "output_tokens", "reads", "send_lags_ns", "sent", "taken", "turnarounds_ns",
        "warmup_done",
    )  # fmt: skip

    def __init__(self) -> None:
        self.in_flight = InFlight()
        self.connected = 0
        self.warmup_done = 0
        self.sent = 0
        self.ok = 0
        self.failed = 0
        self.cut = 0
        self.dropped = 0
        self.exchanges = 0
        self.taken = 0
        self.output_tokens = 0
        self.reads = 0
        self.bytes_received = 0
        self.last_error: str | None = None
        self.first_sent_ns: int | None = None
        # Of the current sampling interval; the sampler empties them.
        self.lags_ns: list[int] = []
        self.turnarounds_ns: list[int] = []
        self.send_lags_ns: list[int] = []


def quantile_s(values_ns: list[int], q: float) -> float | None:
    """Return a quantile in seconds (linear interpolation); None of nothing."""
    if not values_ns:
        return None
    return float(np.quantile(np.asarray(values_ns, np.int64), q)) / 1e9
