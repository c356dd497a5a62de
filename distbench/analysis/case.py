"""A level as it is judged: its row, what its servers told, its clients' health, its steadiness (floor F3, pure)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from distbench.analysis.client_limit import ClientHealth
from distbench.analysis.readings import Reading, Setting, gain, settings_of
from distbench.analysis.server_view import ServerView
from distbench.analysis.stability import Stability

FLAT_RATIO = 0.03
# A level tells something of another's flatness only with clearly fewer or more connections.
_APART_FACTOR = 1.2


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LevelCase:
    """
    Everything that a level's verdict rests on.

    Attributes:
        row: Of levels.parquet (LEVELS), verdict and limit not yet set.
        server: None without metrics.
        client: The clients' judgement.
        stability: None where there was no window.
        rate_error: Standard error of the row's output_token_rate; None: not known.
        ttft_mean_s, e2e_mean_s: The clients' means over the window, to hold against the servers' means; None: the medians are taken.
    """

    row: Mapping[str, Any]
    server: ServerView | None
    client: ClientHealth
    stability: Stability | None = None
    rate_error: float | None = None
    ttft_mean_s: float | None = None
    e2e_mean_s: float | None = None

    @property
    def level(self) -> int:
        """Number of the level."""
        return int(self.row["level"])

    @property
    def connections(self) -> int:
        """Connections over all clients."""
        return int(self.row["connections"])

    @property
    def users_per_request(self) -> int:
        """User messages packed into a request."""
        return int(self.row["users_per_request"])

    @property
    def rate(self) -> float | None:
        """Output tokens/s; None where not measured."""
        value: float | None = self.row["output_token_rate"]
        return value

    @property
    def ttft_s(self) -> float | None:
        """The clients' time to first token: mean, else median."""
        value: float | None = self.row["ttft_p50_s"] if self.ttft_mean_s is None else self.ttft_mean_s
        return value

    @property
    def e2e_s(self) -> float | None:
        """The clients' end-to-end time: mean, else median."""
        value: float | None = self.row["e2e_p50_s"] if self.e2e_mean_s is None else self.e2e_mean_s
        return value

    @property
    def reading(self) -> Reading:
        """The level as the search sees it."""
        good, requests = self.row["goodput_rate"], self.row["request_rate"]
        error = self.rate_error
        if error is None and self.stability is not None:
            error = self.stability.rate_error
        return Reading(
            level=self.level,
            connections=self.connections,
            repeat=int(self.row["repeat"]),
            rate=self.rate,
            request_rate=requests,
            rate_error=error,
            valid=bool(self.row["valid"]),
            stable=None if self.stability is None else self.stability.stable,
            ok=int(self.row["requests_ok"]),
            failed=int(self.row["requests_failed"]),
            duration_s=self.row["whole_s"],
            good_ratio=good / requests if good is not None and requests else None,
            goodput_rate=good,
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ladder:
    """
    All levels of a run, and what they say of each other.

    Attributes:
        cases: In the order they ran.
        settings: Readings by connections, ascending.
    """

    cases: tuple[LevelCase, ...]
    settings: Mapping[int, Setting]

    @classmethod
    def of(cls, cases: Iterable[LevelCase]) -> Ladder:
        """Order the cases of one run; all must have the same load but for their connections."""
        ordered = tuple(sorted(cases, key=lambda case: case.level))
        return cls(cases=ordered, settings=settings_of(case.reading for case in ordered))

    def at(self, connections: int) -> tuple[LevelCase, ...]:
        """Return the cases at a setting, in order."""
        return tuple(case for case in self.cases if case.connections == connections)

    def below(self, connections: int) -> LevelCase | None:
        """Return the case that counts with the most connections clearly below; None: there is none."""
        lower = [
            case
            for case in self.cases
            if case.connections * _APART_FACTOR <= connections and case.reading.counts
        ]
        return max(lower, key=lambda case: (case.connections, case.level), default=None)

    def above(self, connections: int) -> LevelCase | None:
        """Return the case that counts with the fewest connections clearly above; None: there is none."""
        higher = [
            case
            for case in self.cases
            if case.connections >= connections * _APART_FACTOR and case.reading.counts
        ]
        return min(higher, key=lambda case: (case.connections, case.level), default=None)

    def lowest(self) -> LevelCase | None:
        """Return the case that counts with the fewest connections."""
        counted = [case for case in self.cases if case.reading.counts]
        return min(counted, key=lambda case: (case.connections, case.level), default=None)

    def further_gain(self, connections: int) -> tuple[float, int] | None:
        """
        Return the largest gain of a level with more connections, beyond noise, and its connections.

        Returns:
            None where no further level can tell. A level that the client limited proves a gain, but not that there is none.
        """
        here = _mean_rate(self.settings.get(connections))
        if here is None:
            return None
        gains = []
        for further, setting in self.settings.items():
            there = _mean_rate(setting)
            if further < connections * _APART_FACTOR or there is None:
                continue
            more = gain(*there, *here)
            if more > FLAT_RATIO or not all(case.client.limited for case in self.at(further)):
                gains.append((more, further))
        return max(gains, default=None)

    def gain_over_below(self, connections: int) -> tuple[float, int] | None:
        """Return the gain beyond noise over the next setting clearly below, and its connections; None without one."""
        here = _mean_rate(self.settings.get(connections))
        lower = [
            (c, rate)
            for c, setting in self.settings.items()
            if c * _APART_FACTOR <= connections and (rate := _mean_rate(setting)) is not None
        ]
        if here is None or not lower:
            return None
        nearest, rate = max(lower, key=lambda pair: pair[0])
        return gain(*here, *rate), nearest


def _mean_rate(setting: Setting | None) -> tuple[float, float] | None:
    """Return a setting's mean rate and its standard error, smaller the more readings there are; None where none counts."""
    counted = () if setting is None else setting.used
    if not counted:
        return None
    error = _mean([reading.error for reading in counted]) / math.sqrt(len(counted))
    return _mean([reading.rate or 0.0 for reading in counted]), error


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
