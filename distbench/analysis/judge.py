"""
From the files of a run to its rows, verdicts and findings (floor F3): the one place that puts the figures together.

The experiment calls it while it goes on, and ``distbench report`` calls it again on a directory that may be years old or torn: both
read the same files, so they say the same. Nothing here knows how the load was made.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from distbench.analysis.ceiling import GOOD_RATIO, ceiling
from distbench.analysis.client_limit import Verification, verify_client
from distbench.analysis.facts import LevelFacts, level_facts, plan_slos
from distbench.analysis.findings import Judgement, findings_json, judge
from distbench.analysis.ladder import LadderSettings, Stop, next_step
from distbench.analysis.level_row import LevelRow, merged
from distbench.analysis.packing import compare_packings
from distbench.analysis.remarks import remarks
from distbench.analysis.remarks_packing import packing_remarks
from distbench.analysis.row_remarks import row_remarks
from distbench.analysis.tallies import merged_errors
from distbench.store.reader import RunData

VERIFY_PURPOSE = "verify_client"
"""Purpose of a level that repeats the peak with twice the clients: no part of the search."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunVerdict:
    """
    A whole run, judged.

    Attributes:
        rows: Of levels.parquet, verdict and limit included, in the order they ran.
        findings: findings.json.
        errors: Kind of failure -> (requests, one text), over all levels.
        slo_missed: SLOs were asked for, and no level kept them.
    """

    rows: list[LevelRow]
    findings: dict[str, Any]
    errors: dict[str, tuple[int, str]]
    slo_missed: bool


def judge_run(run: RunData, levels: Sequence[LevelFacts] | None = None) -> RunVerdict:
    """
    Judge a run.

    Args:
        run: Its files.
        levels: Its levels where they were gathered already; None: they are gathered from the files.
    """
    facts = run_facts(run) if levels is None else list(levels)
    judgement: Judgement | None = None
    content: dict[str, Any] = {}
    if facts and run.info.command == "shapes":
        judgement, content = _judge_shapes(facts)
    elif facts:
        judgement, content = _judge_search(run, facts)
    return RunVerdict(
        rows=_judged_rows(facts, judgement),
        findings=content,
        errors=merged_errors(level.summary.errors for level in facts),
        slo_missed=_slo_missed(run, facts),
    )


def run_facts(run: RunData) -> list[LevelFacts]:
    """Gather all levels of a run from its files; a level that was cut by the end of its driver is told by what is there."""
    return [level_facts(run, entry) for entry in run.info.levels]


def _judge_search(run: RunData, facts: Sequence[LevelFacts]) -> tuple[Judgement, dict[str, Any]]:
    """Judge levels that differ in their connections only; those with twice the clients speak for the client alone."""
    searched = [level for level in facts if level.purpose is None] or list(facts)
    stop = None
    if run.info.command == "capacity":
        step = next_step([level.reading for level in searched], search_settings(run.plan()))
        stop = step if isinstance(step, Stop) else None
    judgement = judge([level.case for level in searched], stop=stop, verification=_verification(facts))
    return judgement, findings_json(judgement, [*remarks(judgement), *row_remarks(facts)])


def search_settings(plan: Mapping[str, Any]) -> LadderSettings:
    """Return the settings of a capacity search from the table of its plan; a key that is not there has its default."""
    defaults = LadderSettings()
    return LadderSettings(
        start=plan.get("start", defaults.start),
        max_connections=plan.get("max", defaults.max_connections),
        factor=plan.get("factor", defaults.factor),
        connections=tuple(plan.get("connections", ())),
        repeats=plan.get("repeats", defaults.repeats),
    )


def _verification(facts: Sequence[LevelFacts]) -> Verification | None:
    """Hold the levels with twice the clients against those of the same connections; None without such levels."""
    doubled = [level for level in facts if level.purpose == VERIFY_PURPOSE]
    if not doubled:
        return None
    connections = doubled[0].spec.connections
    before = [f for f in facts if f.purpose is None and f.spec.connections == connections]
    rates = [
        [r.rate for f in group if (r := f.reading).counts and r.rate is not None]
        for group in (before, doubled)
    ]
    return verify_client(rates[0], rates[1], before[0].row["clients"]) if all(rates) else None


def _judge_shapes(facts: Sequence[LevelFacts]) -> tuple[Judgement, dict[str, Any]]:
    """Judge packings, each as a ladder of its own, and lay their comparison beside the contract's findings."""
    packings = compare_packings([level.case for level in facts])
    found = [*packing_remarks(packings), *row_remarks(facts)]
    content = findings_json(packings.judgement, found, shapes=packings.to_json())
    return packings.judgement, content


def peak_of(levels: Sequence[LevelFacts]) -> int | None:
    """Return the connections of the peak; None where no level counts."""
    found = ceiling([level.reading for level in levels])
    return None if found is None else found.peak.connections


def _judged_rows(facts: Sequence[LevelFacts], judgement: Judgement | None) -> list[LevelRow]:
    columns = {} if judgement is None else {j.case.level: j.level_columns() for j in judgement.levels}
    return [merged(level.row, columns.get(level.spec.level, {})) for level in facts]


def _slo_missed(run: RunData, facts: Sequence[LevelFacts]) -> bool:
    """An SLO is kept where 99 % of the requests of some level met it; of a run there is only one level."""
    if not plan_slos(run.plan()):
        return False
    return not any((level.reading.good_ratio or 0.0) >= GOOD_RATIO for level in facts)
