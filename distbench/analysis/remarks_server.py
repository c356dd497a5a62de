"""Findings that the servers' metrics give (floor F3, pure): GPU figures against throughput, caches, balance, and what is missing."""

from __future__ import annotations

import math
from collections.abc import Sequence

from distbench.analysis.case import LevelCase
from distbench.analysis.findings import Finding, Judgement
from distbench.telemetry.detect import Continuity
from distbench.telemetry.gpu import UTILISATION_CAVEAT

_GPU_BUSY_RATIO = 0.95
_GROWTH_RATIO = 1.05
_HIT_SPREAD = 0.10
_IMBALANCE = 1.5
_IMBALANCE_SEVERE = 2.0


def server_remarks(judgement: Judgement) -> list[Finding]:
    """Return what the servers' metrics show beyond the limit."""
    cases = judgement.ladder.cases
    if all(case.server is None or not case.server.scrapes for case in cases):
        text = "There are no server metrics: neither a full queue nor a limit can be shown."
        return [*_gpu(judgement), Finding(kind="no_metrics", severity="info", text=text)]
    return [*_gpu(judgement), *_prefix(cases), *_preemptions(cases), *soundness(judgement)]


def soundness(judgement: Judgement) -> list[Finding]:
    """Return what speaks for or against the servers' figures themselves: balance, restarts, what is missing, what does not agree."""
    cases = judgement.ladder.cases
    return [*_balance(judgement), *_continuity(cases), *_missing(judgement), *_reconciled(cases)]


def _gpu(judgement: Judgement) -> list[Finding]:
    """Hold utilisation against throughput: a busy GPU with throughput still growing was not a full one."""
    points = []
    for connections in judgement.ladder.settings:
        cases = [c for c in judgement.ladder.at(connections) if c.reading.counts]
        util = _mean(
            [c.server.gpu.util_mean for c in cases if c.server is not None and c.server.gpu is not None]
        )
        rate = _mean([case.rate for case in cases])
        if util is not None and rate is not None:
            points.append((connections, util, rate))
    if not points:
        return []
    from_here = len(points)
    while from_here and points[from_here - 1][1] >= _GPU_BUSY_RATIO:
        from_here -= 1
    best = max(range(len(points)), key=lambda index: points[index][2])
    beside = _beside(judgement)
    if from_here == len(points):
        text = f"GPU utilisation was {points[best][1]:.0%} where throughput was highest"
        return [_gpu_finding(f"{text}{beside}.", "gpu_utilisation", points[best][1], None)]
    connections, util, rate = points[from_here]
    growth = points[best][2] / rate
    start = (
        f"GPU utilisation was {util:.0%} from {connections} connection{'s' if connections != 1 else ''} on"
    )
    if best > from_here and growth >= _GROWTH_RATIO:
        text = f"{start}, yet throughput still grew {growth:.1f}x after it{beside}. {UTILISATION_CAVEAT}."
    else:
        text = f"{start}, and throughput did not grow after it{beside}."
    return [_gpu_finding(text, "gpu_utilisation", util, growth)]


def _gpu_finding(text: str, kind: str, util: float, growth: float | None) -> Finding:
    return Finding(
        kind=kind, severity="info", text=text, evidence={"gpu_util_mean": util, "growth_after": growth}
    )


def _beside(judgement: Judgement) -> str:
    """Return SM activity and memory bandwidth at the peak, to stand beside the utilisation."""
    views = [
        level.case.server.gpu
        for level in judgement.at_peak
        if level.case.server is not None and level.case.server.gpu is not None
    ]
    sm, dram = _mean([v.sm_active_mean for v in views]), _mean([v.dram_active_mean for v in views])
    parts = []
    if sm is not None:
        parts.append(f"SMs were active {sm:.0%} of the time")
    if dram is not None:
        parts.append(f"memory {dram:.0%}")
    return f" (at the peak {', '.join(parts)})" if parts else ""


def _prefix(cases: Sequence[LevelCase]) -> list[Finding]:
    hits = [(case, case.server.prefix_hit_ratio) for case in cases if case.server is not None]
    known = [(case, ratio) for case, ratio in hits if ratio is not None]
    if not known:
        return []
    low, high = min(known, key=lambda pair: pair[1]), max(known, key=lambda pair: pair[1])
    evidence = {"lowest": low[1], "highest": high[1]}
    if high[1] - low[1] > _HIT_SPREAD:
        text = (
            f"The prefix cache served {low[1]:.0%} of the prompt tokens at {low[0].connections} connections and {high[1]:.0%} at "
            f"{high[0].connections}: part of the difference between levels is the cache's."
        )
        return [Finding(kind="prefix_cache", severity="warning", text=text, evidence=evidence)]
    if high[1] < 0.01:
        text = "The prefix cache served less than 1 % of the prompt tokens: no level was flattered by a warm cache."
    else:
        shares = f"{low[1]:.0%}" if f"{low[1]:.0%}" == f"{high[1]:.0%}" else f"{low[1]:.0%} to {high[1]:.0%}"
        text = f"The prefix cache served {shares} of the prompt tokens, alike at all levels."
    return [Finding(kind="prefix_cache", severity="info", text=text, evidence=evidence)]


def _preemptions(cases: Sequence[LevelCase]) -> list[Finding]:
    hit = [case for case in cases if case.server is not None and case.server.preemptions]
    if not hit:
        return []
    first = min(hit, key=lambda case: case.connections)
    most = max(hit, key=lambda case: (case.server.preemptions or 0.0) if case.server else 0.0)
    count = most.server.preemptions if most.server is not None else None
    text = (
        f"From {first.connections} connections on the KV cache overflowed: up to {count:.0f} preemptions "
        f"(at {most.connections} connections), each of which computes a request's tokens again."
    )
    evidence = {"from_connections": first.connections, "most": count, "at_connections": most.connections}
    return [Finding(kind="preemptions", severity="warning", text=text, evidence=evidence)]


def _balance(judgement: Judgement) -> list[Finding]:
    found = []
    shares = [
        (level.case, level.case.server.imbalance)
        for level in judgement.levels
        if level.case.server is not None and level.case.server.imbalance is not None
    ]
    uneven = [(case, share) for case, share in shares if share > _IMBALANCE]
    if uneven:
        case, share = max(uneven, key=lambda pair: pair[1])
        text = (
            f"One engine made {share:.1f} times its fair share of the tokens at {case.connections} connections: "
            "keep-alive pins each connection to a server, so use several times as many connections as servers, or name every server's URL."
        )
        severity = "warning" if share > _IMBALANCE_SEVERE else "info"
        found.append(Finding(kind="uneven_servers", severity=severity, text=text, evidence={"share": share}))
    imbalanced = [level for level in judgement.levels if level.verdict.fullness.imbalanced]
    if imbalanced:
        level = imbalanced[-1]
        text = f"At {level.case.connections} connections: {level.verdict.fullness.evidence[0]}. The whole could carry more."
        found.append(Finding(kind="imbalanced", severity="warning", text=text))
    return found


def _continuity(cases: Sequence[LevelCase]) -> list[Finding]:
    found = []
    for continuity, kind in ((Continuity.MIXED, "mixed_targets"), (Continuity.RESET, "server_restarted")):
        hit = [case for case in cases if case.server is not None and case.server.continuity is continuity]
        if hit and hit[0].server is not None:
            note = next(iter(hit[0].server.notes), str(continuity))
            text = f"{note[:1].upper()}{note[1:]}. No server figure of these levels can be used."
            evidence = {"levels": [case.level for case in hit]}
            found.append(Finding(kind=kind, severity="error", text=text, evidence=evidence))
    models = {
        note for case in cases if case.server is not None for note in case.server.notes if "models" in note
    }
    found += [
        Finding(kind="several_models", severity="warning", text=f"{note[:1].upper()}{note[1:]}.")
        for note in sorted(models)
    ]
    return found


def _missing(judgement: Judgement) -> list[Finding]:
    """Name the gauges that a verdict would have needed."""
    server = judgement.at_peak[-1].case.server if judgement.at_peak else None
    if server is None or server.continuity is Continuity.MIXED:
        return []
    needed = [name for name in ("running", "waiting", "kv_usage") if name in server.missing]
    if not needed:
        return []
    reasons = ", ".join(f"{name.replace('_', ' ')} ({server.missing[name]})" for name in needed)
    text = f"The servers' metrics lack {reasons}: the verdict rests on the rest."
    return [Finding(kind="missing_metrics", severity="info", text=text, evidence={"missing": needed})]


def _reconciled(cases: Sequence[LevelCase]) -> list[Finding]:
    failed = [case for case in cases if case.row["reconciled"] is False]
    if not failed:
        return []
    text = (
        f"Client and server do not count alike in {len(failed)} of {len(cases)} levels: see the levels' reconciliation for which "
        "figure differs."
    )
    evidence = {"levels": [case.level for case in failed]}
    return [Finding(kind="not_reconciled", severity="warning", text=text, evidence=evidence)]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None
