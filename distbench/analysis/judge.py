"""
From the files of a run to its rows, verdicts and findings (floor F3): the one place that puts the figures together.

The experiment calls it level by level while it goes on, and ``distbench report`` calls it again on a directory that may be years old
or torn: both read the same files, so they say the same. Nothing here knows how the load was made.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distbench.analysis.ceiling import highest_meeting_slos
from distbench.analysis.level_row import LevelRow, merged
from distbench.analysis.readings import Reading
from distbench.analysis.server_view import ServerView, server_view
from distbench.analysis.stability import Stability, judge_stability
from distbench.analysis.summary import CHUNK_COLUMNS, ROW_COLUMNS, LevelSummary, summarize_level
from distbench.core.levels import LevelSpec
from distbench.core.plan import Slo
from distbench.core.plan_values import read_slos
from distbench.store.reader import RunData
from distbench.units import NS_PER_S

_MARGIN_NS = 10 * NS_PER_S


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LevelFacts:
    """
    One level as far as it can be told without the others.

    Attributes:
        spec: Its settings.
        summary: What the clients know.
        server: What the servers told; None without metrics.
        stability: Of the window; None without one.
        lost: Client -> reason, of those that were lost in it.
        stopped: Why the driver ended it early; None.
    """

    spec: LevelSpec
    summary: LevelSummary
    server: ServerView | None
    stability: Stability | None
    lost: Mapping[str, str]
    stopped: str | None

    @property
    def row(self) -> LevelRow:
        """The row of levels.parquet, verdict and limit still None."""
        columns = self.server.level_columns() if self.server is not None else {}
        return merged(self.summary.row, columns, self._validity())

    def _validity(self) -> LevelRow:
        """A level that a fault touched is not judged, whatever its figures."""
        reasons = [f"client {client} was lost" for client in self.lost]
        if self.stopped is not None:
            reasons.append(f"it was ended early ({self.stopped.replace('_', ' ')})")
        if not reasons:
            return {}
        known = self.summary.row["invalid_reason"]
        return {"valid": False, "invalid_reason": "; ".join([*reasons, *([known] if known else [])])}

    @property
    def reading(self) -> Reading:
        """What the capacity search knows of it."""
        row = self.row
        good = row["goodput_rate"]
        return Reading(
            level=self.spec.level,
            connections=self.spec.connections,
            repeat=self.spec.repeat,
            rate=row["output_token_rate"],
            request_rate=row["request_rate"],
            rate_error=self.stability.rate_error if self.stability is not None else None,
            valid=row["valid"],
            stable=self.stability.stable if self.stability is not None else None,
            ok=row["requests_ok"],
            failed=row["requests_failed"],
            duration_s=row["whole_s"],
            good_ratio=good / row["request_rate"] if good is not None and row["request_rate"] else None,
            goodput_rate=good,
        )


def level_facts(run: RunData, entry: Mapping[str, Any]) -> LevelFacts:
    """
    Gather what a run's files say of one level.

    Args:
        run: The run.
        entry: Its object in run.json's levels.
    """
    spec = _spec_of(entry)
    summary = summarize_level(
        spec,
        run.requests(spec.level, columns=ROW_COLUMNS),
        run.clients(),
        num_clients=len(entry.get("clients") or run.info.hosts),
        num_targets=len(run.plan().get("urls", ())) or 1,
        slos=plan_slos(run),
        chunk_batches=run.request_batches(spec.level, columns=CHUNK_COLUMNS),
    )
    return LevelFacts(
        spec=spec,
        summary=summary,
        server=_server(run, entry, summary),
        stability=_stability(summary),
        lost=entry.get("lost_clients") or {},
        stopped=entry.get("stopped"),
    )


def _spec_of(entry: Mapping[str, Any]) -> LevelSpec:
    names = {field.name for field in dataclasses.fields(LevelSpec)}
    return LevelSpec(**{name: value for name, value in entry.items() if name in names})


def _rows_between(rows: pa.Table, start_ns: int, end_ns: int) -> pa.Table:
    """Return the scrapes of one level and of the seconds before it, where its deltas begin."""
    times = rows["time_ns"]
    inside: Any = pc.and_(
        pc.greater_equal(times, pa.scalar(start_ns)), pc.less_equal(times, pa.scalar(end_ns))
    )
    return rows.filter(inside)


def plan_slos(run: RunData) -> tuple[Slo, ...]:
    """Return the SLOs of a run's plan."""
    return read_slos(run.plan().get("slo", {}))


def _stability(summary: LevelSummary) -> Stability | None:
    return judge_stability(np.asarray(summary.slice_rates)) if summary.slice_rates else None


def _server(run: RunData, entry: Mapping[str, Any], summary: LevelSummary) -> ServerView | None:
    settled = [s for s in entry.get("settled") or () if s is not None]
    if summary.window is None or len(settled) != 2:
        return None
    before, after = (int(s["time_ns"]) for s in settled)
    plan = run.plan()
    names = plan.get("metrics-url") or plan.get("urls", ())
    return server_view(
        _rows_between(run.server(), before - _MARGIN_NS, after),
        window_ns=(summary.window.start_ns, summary.window.end_ns),
        settled_ns=(before, after),
        targets=() if plan.get("no-metrics") else tuple(names),
        model=run.info.extra.get("target", {}).get("model"),
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunVerdict:
    """
    A whole run, judged.

    Attributes:
        rows: Of levels.parquet, verdict and limit included, in the order they ran.
        findings: findings.json.
        errors: Kind of failure -> (requests, one text), over all levels.
        slo_missed: SLOs were asked for, and no level (of run: not the level) met them.
    """

    rows: list[LevelRow]
    findings: dict[str, Any]
    errors: dict[str, tuple[int, str]]
    slo_missed: bool


def judge_run(run: RunData, levels: Sequence[LevelFacts]) -> RunVerdict:
    """Judge a run from its levels."""
    readings = [level.reading for level in levels]
    return RunVerdict(
        rows=[level.row for level in levels],
        findings={},
        errors=_errors(levels),
        slo_missed=bool(plan_slos(run)) and highest_meeting_slos(readings) is None,
    )


def _errors(levels: Sequence[LevelFacts]) -> dict[str, tuple[int, str]]:
    errors: dict[str, tuple[int, str]] = {}
    for level in levels:
        for error in level.summary.errors:
            count, text = errors.get(error.kind, (0, ""))
            errors[error.kind] = (count + error.count, text or error.text or "")
    return errors
