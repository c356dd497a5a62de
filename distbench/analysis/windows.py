"""
The measuring window of a level, and how full it was (floor F3, pure).

The server is judged while it is full: from when every connection has finished one measured request until the first client has no
request left to give. Before that the server fills up, after it the load falls away; both would bend every figure.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from distbench.analysis.arrays import Bools, Floats, Ints, integers, is_word, measured, numbers, rows_where
from distbench.core.levels import LevelSpec
from distbench.units import NS_PER_S, NS_PER_US, s_to_ns

WINDOW_COLUMNS = (
    "phase",
    "outcome",
    "client",
    "connection",
    "scheduled_ns",
    "first_sent_ns",
    "sent_ns",
    "end_ns",
    "connect_ns",
)
MIN_WINDOW_S = 5.0
MIN_REQUESTS_PER_CONNECTION = 3
UNEVEN_RATIO = 0.2


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """
    Where figures are taken. All times are ns since the run's epoch; start < end.

    Attributes:
        start_ns, end_ns: The window; what happens at start_ns is outside, at end_ns inside.
        level_start_ns, level_end_ns: First send and last end of the measured requests, for the whole-level figures.
        opened: False where the level was too short for a window by the rule; it then runs from the level's start to the first
            connection that had nothing left to do, and is not valid.
        num_ended: Measured requests that ended inside, failed ones included.
        client_ends_ns: Client -> when it had no request left.
        uneven_ratio: Share of the level that was cut off by the earliest of them; None with one client.
        reasons: Why it is not valid, one sentence each.
    """

    start_ns: int
    end_ns: int
    level_start_ns: int
    level_end_ns: int
    opened: bool
    num_ended: int
    client_ends_ns: Mapping[int, int]
    uneven_ratio: float | None
    reasons: tuple[str, ...]

    @property
    def seconds(self) -> float:
        """Return the window's length."""
        return (self.end_ns - self.start_ns) / NS_PER_S

    @property
    def whole_s(self) -> float:
        """Return the length of the whole level."""
        return (self.level_end_ns - self.level_start_ns) / NS_PER_S

    @property
    def valid(self) -> bool:
        """Return whether a peak may be taken from it."""
        return not self.reasons

    @property
    def is_uneven(self) -> bool:
        """Return whether one client's early end cut off more of the level than is sound."""
        return self.uneven_ratio is not None and self.uneven_ratio > UNEVEN_RATIO


def measure_window(spec: LevelSpec, rows: pa.Table) -> Window | None:
    """
    Find the window of a level.

    Closed loop: it opens when every connection has finished a measured request, and closes when the first client's pool is empty (its
    last request is taken) or, where the level was cut (duration, interrupt), at the cut. Open loop: it opens when all requests that
    were sent before the first answer have ended, which is the same generation, and closes at the last slot of the schedule or the cut.

    Args:
        spec: The level.
        rows: Columns WINDOW_COLUMNS, every row of the level.

    Returns:
        None where nothing was ever sent, or all of it in an instant.
    """
    return _Level(spec, rows).window()


class _Level:
    """The measured rows of a level as arrays."""

    def __init__(self, spec: LevelSpec, rows: pa.Table) -> None:
        kept = rows_where(rows, measured(rows), WINDOW_COLUMNS)
        self.spec = spec
        self.ended: Bools = is_word(kept, "outcome", "ok", "failed")
        self.cut = is_word(kept, "outcome", "cut")
        self.num_lost = int(is_word(kept, "outcome", "lost").sum())
        self.dropped = is_word(kept, "outcome", "dropped")
        self.end = numbers(kept, "end_ns")
        self.scheduled = numbers(kept, "scheduled_ns")
        sent = numbers(kept, "first_sent_ns")
        # A request that failed to connect was taken and never sent.
        self.taken: Floats = np.where(np.isnan(sent), self.end, sent)
        self.connection = integers(kept, "connection")
        self.clients, self.client = np.unique(integers(kept, "client"), return_inverse=True)

    def window(self) -> Window | None:
        done = (self.ended | self.cut) & ~np.isnan(self.end)
        if not done.any():
            return None
        level_start, level_end = float(np.nanmin(self.taken)), float(self.end[done].max())
        client_ends = self._client_ends(level_start, level_end)
        opens = self._generation_end() if self.spec.is_open_loop else self._all_served()
        closes = float(client_ends.min())
        opened = opens is not None and opens < closes
        start, end = (opens, closes) if opens is not None and opened else self._whole(level_start, level_end)
        if end <= start:
            return None
        inside = self.ended & (self.end > start) & (self.end <= end)
        last_end = float(client_ends.max())
        uneven = (last_end - closes) / (last_end - level_start) if last_end > level_start else 0.0
        return Window(
            start_ns=int(start),
            end_ns=int(end),
            level_start_ns=int(level_start),
            level_end_ns=int(level_end),
            opened=opened,
            num_ended=int(inside.sum()),
            client_ends_ns=dict(
                zip(self.clients.tolist(), client_ends.astype(np.int64).tolist(), strict=True)
            ),
            uneven_ratio=uneven if len(self.clients) > 1 else None,
            reasons=tuple(self._reasons(start, end, opened, int(inside.sum()))),
        )

    def _all_served(self) -> float | None:
        """Return when the last of all connections finished its first request; None where one never did."""
        first = _least(self.end, self.connection, self.ended)
        return float(first.max()) if len(first) >= self.spec.connections else None

    def _generation_end(self) -> float | None:
        """Return when the requests that were sent before the first answer had all ended."""
        if not self.ended.any():
            return None
        first_answer = float(self.end[self.ended].min())
        generation = (self.ended | self.cut) & (self.taken <= first_answer)
        return float(self.end[generation].max())

    def _client_ends(self, level_start: float, level_end: float) -> Floats:
        """Return for each client when it had nothing left to give; shape (clients,)."""
        deadline = level_end
        if self.spec.duration_s is not None:
            deadline = min(deadline, level_start + s_to_ns(self.spec.duration_s))
        slots = self.scheduled if self.spec.is_open_loop else self.taken
        has_slot = ~np.isnan(slots)
        ends: Floats = np.full(len(self.clients), level_start)
        np.maximum.at(ends, self.client[has_slot], slots[has_slot])
        if not self.spec.is_open_loop and (self.spec.duration_s is not None or self.cut.any()):
            # A pool that was not empty at the end: the deadline or a stop ended it, not its last request.
            unfinished = self.dropped if self.spec.requests is not None else np.ones_like(self.dropped)
            ends[self.client[unfinished]] = deadline
        cuts: Floats = np.full(len(self.clients), np.inf)
        is_cut = self.cut & ~np.isnan(self.end)
        np.minimum.at(cuts, self.client[is_cut], self.end[is_cut])
        known = np.minimum(cuts, ends) if self.spec.is_open_loop else np.where(np.isinf(cuts), ends, cuts)
        closes: Floats = np.minimum(known, deadline)
        return closes

    def _whole(self, level_start: float, level_end: float) -> tuple[float, float]:
        """Return the level up to the first connection that had nothing left to do."""
        if self.spec.is_open_loop or not self.ended.any():
            return level_start, level_end
        last = -_least(-self.end, self.connection, self.ended | self.cut)
        idle_from = float(last.min())
        return level_start, idle_from if idle_from > level_start else level_end

    def _reasons(self, start: float, end: float, opened: bool, num_ended: int) -> list[str]:
        reasons = []
        if self.num_lost:
            reasons.append(f"{self.num_lost} requests were lost with their client")
        if not opened:
            reasons.append("the load ended before every connection had finished one request")
        seconds = (end - start) / NS_PER_S
        if seconds < MIN_WINDOW_S:
            reasons.append(f"the window is {seconds:.1f} s long, less than {MIN_WINDOW_S:g} s")
        holders = self._holders(start, end)
        if num_ended < MIN_REQUESTS_PER_CONNECTION * holders:
            reasons.append(
                f"{num_ended} requests ended in the window, fewer than {MIN_REQUESTS_PER_CONNECTION} "
                f"for each of {holders} connections"
            )
        return reasons

    def _holders(self, start: float, end: float) -> int:
        """Return the connections that the load kept busy: all of them in closed loop, the mean in flight in open loop."""
        if not self.spec.is_open_loop:
            return self.spec.connections
        known = ~np.isnan(self.end) & ~np.isnan(self.taken)
        return max(1, math.ceil(_busy(self.taken[known], self.end[known], start, end) / (end - start)))


def _least(values: Floats, groups: Ints, rows: Bools) -> Floats:
    """Return the smallest value of each group, over some rows only; shape (groups that occur,)."""
    usable = rows & ~np.isnan(values)
    found, where = np.unique(groups[usable], return_inverse=True)
    least = np.full(len(found), np.inf)
    np.minimum.at(least, where, values[usable])
    return least


def _busy(starts: Floats, ends: Floats, start: float, end: float) -> float:
    """Return the summed length of intervals inside start..end."""
    return float(np.clip(np.minimum(ends, end) - np.maximum(starts, start), 0, None).sum())


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class InFlight:
    """Requests between their (last) sending and their end, over the window, warm-up included."""

    mean: float
    minimum: int
    maximum: int


def in_flight(rows: pa.Table, window: Window) -> InFlight:
    """Count the requests in flight over a window from their stamps; time waiting for a retry does not count."""
    sent, end = numbers(rows, "sent_ns"), numbers(rows, "end_ns")
    known = ~np.isnan(sent) & ~np.isnan(end) & (end > window.start_ns) & (sent < window.end_ns)
    sent, end = sent[known], end[known]
    mean = _busy(sent, end, window.start_ns, window.end_ns) / (window.end_ns - window.start_ns)
    sent.sort()
    end.sort()
    # Fewest after an end, most after a sending; whatever happens at the same instant is taken together.
    after_end = end[end < window.end_ns]
    after_sent = np.append(sent[sent > window.start_ns], window.start_ns)
    lowest = _at(after_end, sent) - _at(after_end, end)
    highest = _at(after_sent, sent) - _at(after_sent, end)
    begun = int(_at(np.array([window.start_ns], np.float64), sent)[0])
    return InFlight(mean=mean, minimum=int(min(lowest.min(initial=begun), begun)), maximum=int(highest.max()))


def _at(times: Floats, sorted_events: Floats) -> Ints:
    """Return how many events had happened at each time, that instant included."""
    return np.searchsorted(sorted_events, times, side="right").astype(np.int64)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Turnarounds:
    """
    What the client took between an answer's end and the next send on the same connection, connecting not included.

    Attributes:
        ratio: Their sum inside the window / (connections x window).
        seconds: Those of which the next send lies inside the window.
    """

    ratio: float
    seconds: Floats


def turnarounds(rows: pa.Table, window: Window, connections: int) -> Turnarounds:
    """Return the turnarounds of a closed loop; columns WINDOW_COLUMNS, warm-up included."""
    begin, end = numbers(rows, "first_sent_ns"), numbers(rows, "end_ns")
    connection = integers(rows, "connection")
    near = ~np.isnan(begin) & ~np.isnan(end) & (connection >= 0) & (begin <= window.end_ns)
    connecting = np.nan_to_num(numbers(rows, "connect_ns")[near])
    begin, end, connection = begin[near], end[near], connection[near]
    # One key of both, which sorts several times faster than two: times within a run stay below 2**43 µs.
    order = np.argsort((connection << 43) + (begin / NS_PER_US).astype(np.int64))
    begin, end, connection, connecting = begin[order], end[order], connection[order], connecting[order]
    follows = connection[1:] == connection[:-1]
    idle_from, idle_to = end[:-1][follows], (begin - connecting)[1:][follows]
    idle_to = np.maximum(idle_to, idle_from)
    inside = (begin[1:][follows] > window.start_ns) & (begin[1:][follows] <= window.end_ns)
    idle = _busy(idle_from, idle_to, window.start_ns, window.end_ns)
    return Turnarounds(
        ratio=idle / (connections * (window.end_ns - window.start_ns)),
        seconds=(idle_to - idle_from)[inside] / NS_PER_S,
    )
