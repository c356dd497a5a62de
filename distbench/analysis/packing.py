"""
The packing experiment, compared (floor F3, pure): the same user messages sent 1, 2, 4, ... per request.

Levels of one packing are judged as a ladder of their own: more connections with the same requests. Across packings nothing is a ladder;
there the user messages answered per second decide, among the shapes at which the server was full. The sentences are made in
remarks_packing.py.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from distbench.analysis.case import Ladder, LevelCase
from distbench.analysis.ceiling import Ceiling, Point
from distbench.analysis.diagnosis import Limit, diagnose
from distbench.analysis.findings import JudgedLevel, Judgement, judge, run_limit
from distbench.analysis.noise import t_interval
from distbench.analysis.saturation import Verdict, judge_level, run_verdict

FIGURES = (
    "request_rate",
    "output_token_rate",
    "total_token_rate",
    "prefix_hit_ratio",
    "cached_tokens_ratio",
    "kv_usage_mean",
    "kv_usage_max",
    "preemptions",
    "running_mean",
    "running_max",
    "waiting_mean",
    "queue_time_mean_s",
    "prefill_time_mean_s",
    "decode_time_mean_s",
    "ttft_p50_s",
    "ttft_p99_s",
    "tpot_p50_s",
    "e2e_p50_s",
    "e2e_p99_s",
    "prompt_tokens_mean",
    "completion_tokens_mean",
    "requests_ok",
    "requests_failed",
    "requests_overflowed",
    "requests_clamped",
    "answered_ratio",
)
"""Columns of levels.parquet that stand side by side in findings.json's "shapes"."""

_NOISE_ERRORS = 2.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """
    One packing at one number of connections, over all its visits.

    Attributes:
        users_per_request: User messages packed into a request.
        connections: Held.
        visits: Its levels in the order they ran; at least one.
        verdict: Of the visits together.
        limit: Likewise.
        rate: User messages answered per second, the mean of the visits that count, of all where none does; None: not measured.
        error: Standard error of rate: from the scatter inside the visits, or between them where that is more; None without a rate.
        interval: 95 % t interval of rate over the visits; None with fewer than two.
    """

    users_per_request: int
    connections: int
    visits: tuple[JudgedLevel, ...]
    verdict: Verdict
    limit: Limit
    rate: float | None
    error: float | None
    interval: tuple[float, float] | None

    @property
    def counted(self) -> tuple[JudgedLevel, ...]:
        """The visits whose figures may be judged."""
        return tuple(
            visit for visit in self.visits if _message_rate(visit.case) and visit.case.reading.counts
        )

    @property
    def is_ranked(self) -> bool:
        """Whether it takes part in the comparison: its figures count, and the server was full."""
        return bool(self.counted) and self.verdict is Verdict.SATURATED

    @property
    def row(self) -> Mapping[str, Any]:
        """The row of its typical visit: the median by user messages/s, the lower of two; all figures beside the rate are its own."""
        visits = sorted(self.counted or self.visits, key=lambda visit: _message_rate(visit.case) or 0.0)
        return visits[(len(visits) - 1) // 2].case.row

    @property
    def hit_ratio(self) -> float | None:
        """Share of the prompt tokens out of the prefix cache, by the servers' counters, else by usage; None: unknown."""
        value: float | None = self.row["prefix_hit_ratio"]
        return self.row["cached_tokens_ratio"] if value is None else value

    @property
    def computed_per_message(self) -> float | None:
        """Prompt tokens that the server had to compute per user message, recomputation left out; None: unknown."""
        prompt, hits = self.row["prompt_tokens_mean"], self.hit_ratio
        if prompt is None or hits is None:
            return None
        return float(prompt) * (1 - hits) / self.users_per_request


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Packings:
    """
    A shapes run, judged.

    Attributes:
        shapes: By user messages per request, then by connections.
        ranking: Those that are ranked, the most user messages/s first.
        judgement: Of the run as findings.json tells it: verdict, limit and peak are those of the best shape.
    """

    shapes: tuple[Shape, ...]
    ranking: tuple[Shape, ...]
    judgement: Judgement

    @property
    def best(self) -> Shape | None:
        """The shape with the most user messages/s; None where none is ranked."""
        return self.ranking[0] if self.ranking else None

    @property
    def champions(self) -> tuple[Shape, ...]:
        """The best ranked shape of each packing, by user messages per request."""
        first: dict[int, Shape] = {}
        for shape in self.ranking:
            first.setdefault(shape.users_per_request, shape)
        return tuple(first[users] for users in sorted(first))

    @property
    def unpacked(self) -> Shape | None:
        """The best ranked shape with one user message per request; None."""
        return next((shape for shape in self.champions if shape.users_per_request == 1), None)

    @property
    def reference(self) -> Shape | None:
        """What the others are held against: the unpacked shape, even where the server was not full there; else the best; None."""
        alone = [shape for shape in self.shapes if shape.users_per_request == 1 and shape.counted]
        return self.unpacked or max(alone, key=lambda shape: shape.rate or 0.0, default=self.best)

    @property
    def overtaking(self) -> tuple[Shape, ...]:
        """Shapes that gave more than the best, beyond noise, without the server being full: at least as good, and not ranked."""
        best = self.best
        return tuple(
            shape
            for shape in self.shapes
            if best is not None
            and shape.counted
            and shape.verdict is Verdict.NOT_SATURATED
            and (shape.rate or 0.0) > (best.rate or 0.0)
            and differs(best, shape)
        )

    def to_json(self) -> list[dict[str, Any]]:
        """Return the comparison for findings.json, one object a shape; None for what is not known."""
        return [self._entry(shape) for shape in self.shapes]

    def _entry(self, shape: Shape) -> dict[str, Any]:
        best = self.best
        ratio = within = None
        if best is not None and best.rate and shape.rate is not None:
            ratio, within = shape.rate / best.rate, not differs(best, shape)
        return {
            "users_per_request": shape.users_per_request,
            "connections": shape.connections,
            "levels": [visit.case.level for visit in shape.visits],
            "verdict": str(shape.verdict),
            "limit": str(shape.limit),
            "ranked": shape.is_ranked,
            "rank": self.ranking.index(shape) + 1 if shape in self.ranking else None,
            "user_message_rate": shape.rate,
            "user_message_error": shape.error,
            "interval": [None, None] if shape.interval is None else list(shape.interval),
            "ratio_to_best": ratio,
            "within_noise_of_best": within,
            "prompt_tokens_computed_per_message": shape.computed_per_message,
            **{name: shape.row[name] for name in FIGURES},
        }


def compare_packings(cases: Sequence[LevelCase]) -> Packings:
    """
    Judge a run whose levels differ in packing and in connections.

    Args:
        cases: Its levels, at least one.
    """
    judged: dict[int, Judgement] = {}
    for users in sorted({case.users_per_request for case in cases}):
        judged[users] = _judge_packing([case for case in cases if case.users_per_request == users])
    shapes = tuple(shape for users, group in judged.items() for shape in _shapes_of(users, group))
    ranking = tuple(
        sorted(
            (shape for shape in shapes if shape.is_ranked), key=lambda shape: shape.rate or 0.0, reverse=True
        )
    )
    return Packings(shapes=shapes, ranking=ranking, judgement=_judgement(cases, judged, shapes, ranking))


def _judge_packing(cases: Sequence[LevelCase]) -> Judgement:
    """
    Judge the levels of one packing.

    Fewer connections are overruled by more that give more. The most connections are judged by the gauges alone: the level below is no
    rung that was climbed from but as many messages in flight, so that growth over it does not speak against a full server.
    """
    judged = judge(cases)
    most = max(case.connections for case in cases)
    alone = Ladder.of(case for case in cases if case.connections == most)
    levels = []
    for level in judged.levels:
        if level.case.connections == most:
            verdict = judge_level(level.case, alone)
            diagnosis = diagnose(level.case, verdict, judged.ladder)
            level = JudgedLevel(case=level.case, verdict=verdict, diagnosis=diagnosis)
        levels.append(level)
    return dataclasses.replace(judged, levels=tuple(levels))


def differs(one: Shape, other: Shape) -> bool:
    """Tell whether the rates of two shapes differ by more than two standard errors of the difference."""
    if one.rate is None or other.rate is None:
        return False
    return abs(one.rate - other.rate) > _NOISE_ERRORS * math.hypot(one.error or 0.0, other.error or 0.0)


def _shapes_of(users: int, group: Judgement) -> list[Shape]:
    by_connections: dict[int, list[JudgedLevel]] = {}
    for level in group.levels:
        by_connections.setdefault(level.case.connections, []).append(level)
    return [_shape(users, held, by_connections[held]) for held in sorted(by_connections)]


def _shape(users: int, connections: int, visits: Sequence[JudgedLevel]) -> Shape:
    verdict = run_verdict([visit.verdict for visit in visits])
    counted = [visit.case for visit in visits if visit.case.reading.counts]
    known = [case for case in counted if _message_rate(case)] or [visit.case for visit in visits]
    rates = [rate for case in known if (rate := _message_rate(case)) is not None]
    mean = math.fsum(rates) / len(rates) if rates else None
    return Shape(
        users_per_request=users,
        connections=connections,
        visits=tuple(visits),
        verdict=verdict,
        limit=run_limit(verdict, visits),
        rate=mean,
        error=None if mean is None else _error(known, rates, mean),
        interval=t_interval(rates),
    )


def _error(cases: Sequence[LevelCase], rates: Sequence[float], mean: float) -> float:
    """Return the standard error of the mean of some visits; a user message is a share of its request's tokens, so it scatters as they do."""
    inside = [case.reading.error / case.rate for case in cases if case.rate]
    relative = math.fsum(inside) / len(inside) if inside else 0.0
    errors = [relative * mean]
    if len(rates) > 1:
        errors.append(math.sqrt(math.fsum((rate - mean) ** 2 for rate in rates) / (len(rates) - 1)))
    return max(errors) / math.sqrt(len(rates))


def _message_rate(case: LevelCase) -> float | None:
    value: float | None = case.row["user_message_rate"]
    return value


def _judgement(
    cases: Sequence[LevelCase],
    judged: Mapping[int, Judgement],
    shapes: Sequence[Shape],
    ranking: Sequence[Shape],
) -> Judgement:
    """Put the packings' judgements together; where none is ranked the best that counts stands for the run, as a lower bound."""
    counted = [shape for shape in shapes if shape.counted]
    best = ranking[0] if ranking else max(counted, key=lambda shape: shape.rate or 0.0, default=None)
    levels = [level for group in judged.values() for level in group.levels]
    return Judgement(
        levels=tuple(sorted(levels, key=lambda level: level.case.level)),
        ceiling=None if best is None else _ceiling(best, judged[best.users_per_request]),
        verdict=run_verdict([level.verdict for level in levels]) if best is None else best.verdict,
        limit=Limit.NONE_FOUND if best is None else best.limit,
        lower_bound=not ranking,
        ladder=Ladder.of(cases),
        peak_users=None if best is None else best.users_per_request,
    )


def _ceiling(best: Shape, group: Judgement) -> Ceiling | None:
    """Return the best packing's own curve with the best shape as its peak."""
    found = group.ceiling
    if found is None:
        return None
    rates = [visit.case.rate for visit in best.counted if visit.case.rate is not None]
    requests = [rate for visit in best.counted if (rate := visit.case.row["request_rate"]) is not None]
    peak = Point(
        connections=best.connections,
        output_token_rate=math.fsum(rates) / len(rates),
        request_rate=math.fsum(requests) / len(requests) if requests else None,
        interval=t_interval(rates),
        readings=len(rates),
    )
    moved = found.peak.connections != best.connections
    knee = found.knee if found.knee.connections < best.connections else peak
    return dataclasses.replace(found, peak=peak, knee=knee, decline=None if moved else found.decline)
