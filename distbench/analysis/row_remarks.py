"""
Findings that need more than the levels' figures (floor F3): what was lost, foreign traffic, uneven clients and targets, our own faults.
"""

from __future__ import annotations

from collections.abc import Sequence

from distbench.analysis.facts import LevelFacts
from distbench.analysis.findings import Finding

# A target with more than twice its fair share of the answers carries the others' load.
_UNFAIR_SHARE = 2.0


def row_remarks(levels: Sequence[LevelFacts]) -> list[Finding]:
    """Return what the rows of a run's levels give reason to say, each level on its own."""
    makers = (_lost, _accounting, _reconciliation, _uneven_clients, _uneven_targets, _negative, _user_stamps)
    return [finding for level in levels for make in makers for finding in make(level)]


def _at(level: LevelFacts) -> str:
    return f"level {level.spec.level} ({level.spec.connections} connections)"


def _lost(level: LevelFacts) -> list[Finding]:
    return [
        Finding(
            kind="client_lost",
            severity="error",
            text=f"Client {client} was lost in {_at(level)}: {reason}. Its load ended there; the level is not judged.",
            evidence={"level": level.spec.level, "client": int(client), "reason": reason},
        )
        for client, reason in level.lost.items()
    ]


def _accounting(level: LevelFacts) -> list[Finding]:
    problem = level.summary.accounting.problem
    if problem is None:
        return []
    return [
        Finding(
            kind="unbalanced",
            severity="error",
            text=f"In {_at(level)} {problem}.",
            evidence={"level": level.spec.level, "planned": level.summary.accounting.planned},
        )
    ]


def _reconciliation(level: LevelFacts) -> list[Finding]:
    found = level.reconciliation
    if found is None or found.reconciled is not False:
        return []
    evidence = {
        "level": level.spec.level,
        "tolerance_ratio": found.tolerance_ratio,
        "checks": [
            {"name": c.name, "client": c.client, "server": c.server, "passed": c.passed} for c in found.checks
        ],
    }
    if found.foreign_traffic:
        text = f"Somebody else used the server during {_at(level)}: {found.problem}. The level is not judged."
        return [Finding(kind="foreign_traffic", severity="error", text=text, evidence=evidence)]
    text = f"Client and server do not agree on {_at(level)}: {found.problem}."
    return [Finding(kind="not_reconciled", severity="warning", text=text, evidence=evidence)]


def _uneven_clients(level: LevelFacts) -> list[Finding]:
    window = level.summary.window
    if window is None or not window.is_uneven or window.uneven_ratio is None:
        return []
    return [
        Finding(
            kind="uneven",
            severity="warning",
            text=(
                f"The clients did not end together in {_at(level)}: {window.uneven_ratio:.0%} of it lies behind the first one's end "
                "and is not in the window."
            ),
            evidence={"level": level.spec.level, "uneven_ratio": window.uneven_ratio},
        )
    ]


def _uneven_targets(level: LevelFacts) -> list[Finding]:
    answered = level.summary.target_requests
    total = sum(answered.values())
    if len(answered) < 2 or not total:
        return []
    target, most = max(answered.items(), key=lambda item: item[1])
    share = most / total * len(answered)
    if share <= _UNFAIR_SHARE:
        return []
    return [
        Finding(
            kind="uneven_targets",
            severity="warning",
            text=f"{target} answered {share:.1f} times its fair share of {_at(level)}: the figure is not that of all targets.",
            evidence={"level": level.spec.level, "requests": dict(answered)},
        )
    ]


def _negative(level: LevelFacts) -> list[Finding]:
    if not level.summary.num_negative:
        return []
    return [
        Finding(
            kind="internal_fault",
            severity="error",
            text=f"{level.summary.num_negative} intervals of {_at(level)} are below zero: a fault of distbench, please report it.",
            evidence={"level": level.spec.level, "intervals": level.summary.num_negative},
        )
    ]


def _user_stamps(level: LevelFacts) -> list[Finding]:
    ratio = level.summary.user_stamps_ratio
    if not ratio or ratio < 0.01:
        return []
    return [
        Finding(
            kind="user_stamps",
            severity="info",
            text=(
                f"{ratio:.0%} of the answers of {_at(level)} bear no kernel stamps: the client's own delay is in their latencies."
            ),
            evidence={"level": level.spec.level, "ratio": ratio},
        )
    ]
