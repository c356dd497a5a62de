"""
A run judged (floor F3, pure): every level's verdict and limit, the ceiling, and the content of findings.json.

The sentences are made in remarks.py from the same numbers that stand beside them as evidence.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from distbench.analysis.case import Ladder, LevelCase
from distbench.analysis.ceiling import Ceiling, Point, SloLevel, ceiling, highest_meeting_slos
from distbench.analysis.client_limit import Verification
from distbench.analysis.diagnosis import Diagnosis, Limit, diagnose
from distbench.analysis.ladder import Stop
from distbench.analysis.saturation import LevelVerdict, Verdict, judge_level, run_verdict

SCHEMA = 1
SEVERITIES = ("good", "info", "warning", "error")
# What is told before all else, whatever its severity: the result, then why.
_FIRST = {"ceiling": 0, "packing": 0, "packing_shape": 1}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """
    One thing to know.

    Attributes:
        kind: A word that programs can rely on; docs/verdicts.md lists them.
        severity: good | info | warning | error; an error means that a figure must not be used as it stands.
        text: One or two plain sentences.
        evidence: The numbers behind them; None for what is not known.
    """

    kind: str
    severity: str
    text: str
    evidence: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JudgedLevel:
    """A level with its verdict and limit."""

    case: LevelCase
    verdict: LevelVerdict
    diagnosis: Diagnosis

    def level_columns(self) -> dict[str, str]:
        """Return the columns of levels.parquet that hold the judgement."""
        return {"verdict": str(self.verdict.verdict), "limit": str(self.diagnosis.limit)}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """
    A whole run.

    Attributes:
        levels: In the order they ran.
        ceiling: None where no level counts.
        verdict, limit: Of the run: those of its peak.
        lower_bound: Whether the peak's figure is only known to be reached, not to be the most.
        ladder: What the levels say of each other.
        stop: Why the search ended; None without a search.
        slo: The highest level that kept the SLOs; None.
        verification: Of --verify-client; None where not asked.
        peak_users: User messages per request of the peak, where the levels differ in them; None: they are alike in it.
    """

    levels: tuple[JudgedLevel, ...]
    ceiling: Ceiling | None
    verdict: Verdict
    limit: Limit
    lower_bound: bool
    ladder: Ladder
    stop: Stop | None = None
    slo: SloLevel | None = None
    verification: Verification | None = None
    peak_users: int | None = None

    @property
    def at_peak(self) -> tuple[JudgedLevel, ...]:
        """The levels at the peak's connections; all levels where there is no peak."""
        if self.ceiling is None:
            return self.levels
        peak, users = self.ceiling.peak.connections, self.peak_users
        return tuple(
            level
            for level in self.levels
            if level.case.connections == peak and users in (None, level.case.users_per_request)
        )


def judge(
    cases: Sequence[LevelCase], *, stop: Stop | None = None, verification: Verification | None = None
) -> Judgement:
    """
    Judge a run whose levels differ in their connections only.

    Args:
        cases: Its levels, at least one. Those of --verify-client (twice the clients) are left out: ``verification`` speaks for them.
        stop: What ended the search; None for a run without one.
        verification: See verify_client.
    """
    ladder = Ladder.of(cases)
    levels = []
    for case in ladder.cases:
        judged = judge_level(case, ladder)
        levels.append(JudgedLevel(case=case, verdict=judged, diagnosis=diagnose(case, judged, ladder)))
    readings = [case.reading for case in ladder.cases]
    found = ceiling(readings)
    peak = [level for level in levels if found is None or level.case.connections == found.peak.connections]
    verdict = run_verdict([level.verdict for level in peak])
    if verification is not None and not verification.agrees and verification.ratio > 1:
        verdict = Verdict.CLIENT_LIMITED
    return Judgement(
        levels=tuple(levels),
        ceiling=found,
        verdict=verdict,
        limit=run_limit(verdict, peak),
        lower_bound=verdict is not Verdict.SATURATED,
        ladder=ladder,
        stop=stop,
        slo=highest_meeting_slos(readings),
        verification=verification,
    )


def run_limit(verdict: Verdict, peak: Sequence[JudgedLevel]) -> Limit:
    """Return the limit that most of the levels at the peak name; the first named of equals."""
    if verdict is Verdict.CLIENT_LIMITED:
        return Limit.CLIENT
    named = [
        level.diagnosis.limit
        for level in peak
        if level.diagnosis.limit not in (Limit.NONE_FOUND, Limit.CLIENT)
    ]
    return max(named, key=named.count, default=Limit.NONE_FOUND)


def findings_json(judgement: Judgement, findings: Sequence[Finding], **more: Any) -> dict[str, Any]:
    """
    Return the content of findings.json.

    Args:
        judgement: Of the run.
        findings: Remarks of this analysis and those that others add; the gravest come first.
        more: Further keys, such as the comparison of shapes.

    Returns:
        Plain values, safe for JSON: no NaN or infinity, unknown is None.
    """
    order = {severity: -index for index, severity in enumerate(SEVERITIES)}
    ordered = sorted(
        findings, key=lambda f: (_FIRST.get(f.kind, 2), 0 if f.kind in _FIRST else order[f.severity])
    )
    found = judgement.ceiling
    content = {
        "schema": SCHEMA,
        "verdict": str(judgement.verdict),
        "limit": str(judgement.limit),
        "lower_bound": judgement.lower_bound,
        "peak": _point(found.peak) if found else None,
        "knee": _point(found.knee) if found else None,
        "decline": dataclasses.asdict(found.decline) if found and found.decline else None,
        "client": _client(judgement),
        "slo": dataclasses.asdict(judgement.slo) if judgement.slo else None,
        "levels": [
            {
                "level": level.case.level,
                "connections": level.case.connections,
                "verdict": str(level.verdict.verdict),
                "limit": str(level.diagnosis.limit),
                "evidence": [*level.verdict.evidence, *_more(level)],
            }
            for level in judgement.levels
        ],
        "findings": [dataclasses.asdict(finding) for finding in ordered],
        **more,
    }
    clean: dict[str, Any] = _json_safe(content)
    return clean


def _point(point: Point) -> dict[str, Any]:
    return {
        "connections": point.connections,
        "request_rate": point.request_rate,
        "output_token_rate": point.output_token_rate,
        "interval": [None, None] if point.interval is None else list(point.interval),
    }


def _client(judgement: Judgement) -> dict[str, Any]:
    limited = judgement.verdict is Verdict.CLIENT_LIMITED
    evidence = list(worst_client(judgement).client.evidence)
    if judgement.verification is not None:
        evidence.append(judgement.verification.text)
    return {"limited": limited, "evidence": evidence}


def worst_client(judgement: Judgement) -> LevelCase:
    """Return the level at the peak whose clients were worst off: what is said of it holds for the others all the more."""

    def badness(case: LevelCase) -> tuple[int, float, float]:
        health = case.client
        state = {True: 2, None: 1, False: 0}[health.limited]
        return state, health.turnaround_ratio or 0.0, health.lag_p99_s or 0.0

    return max((level.case for level in judgement.at_peak), key=badness)


def _more(level: JudgedLevel) -> list[str]:
    """Return the diagnosis' evidence that the verdict does not tell already."""
    if level.diagnosis.limit is Limit.NONE_FOUND:
        return []
    return [text for text in level.diagnosis.evidence if text not in level.verdict.evidence]


def _json_safe(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _json_safe(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json_safe(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value.item() if hasattr(value, "item") else value
