"""
What a shapes run found, in plain language (floor F3, pure): which packing answers most user messages, and why the others do not.

All comparisons are made from the numbers of this run: where packing wins, the text says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from distbench.analysis.ceiling import GOOD_RATIO
from distbench.analysis.findings import Finding
from distbench.analysis.packing import Packings, Shape, differs
from distbench.analysis.packing_reasons import changes_between
from distbench.analysis.remarks import client_remarks, level_remarks, limit_remarks, number
from distbench.analysis.remarks_server import soundness

_CLAMP_SEVERE = 0.01


def packing_remarks(packings: Packings) -> list[Finding]:
    """Return everything there is to say of a shapes run from its levels."""
    judgement = packings.judgement
    return [
        *_headline(packings),
        *_reasons(packings),
        *_connections(packings),
        *_misleading(packings),
        *_clamped(packings),
        *_overflowed(packings),
        *_unranked(packings),
        *_slo(packings),
        *limit_remarks(judgement),
        *client_remarks(judgement),
        *soundness(judgement),
        *level_remarks(judgement),
    ]


def _headline(packings: Packings) -> list[Finding]:
    best = packings.best
    if best is None:
        return [_nothing_ranked(packings)]
    rivals = [shape for shape in packings.champions if shape.users_per_request != best.users_per_request]
    evidence: dict[str, Any] = {
        "users_per_request": best.users_per_request,
        "connections": best.connections,
        "user_message_rate": best.rate,
        "user_message_error": best.error,
        "ratio_to_unpacked": _ratio(best, packings.unpacked),
    }
    figure = f"{number(best.rate)} user messages/s at {_count(best.connections, 'connection')}"
    open_end = _open_end(packings, best, figure)
    if open_end is not None:
        return [Finding(kind="packing", severity="warning", text=open_end, evidence=evidence)]
    if not rivals:
        text = f"{_name(best)} gave {figure}; no other packing can be ranked beside it."
        return [Finding(kind="packing", severity="warning", text=text, evidence=evidence)]
    equal = [shape for shape in rivals if not differs(best, shape)]
    evidence["within_noise"] = [shape.users_per_request for shape in equal]
    if equal:
        return [_tie(packings, best, figure, equal, evidence)]
    if best.users_per_request == 1:
        text = f"Packing does not pay here: one user message per request gives most, {figure}; {_losses(rivals, best)}."
    else:
        text = f"Packing pays here: {_name(best, lower=True)} gives most, {figure}; {_losses(rivals, best)}."
    return [Finding(kind="packing", severity="good", text=text, evidence=evidence)]


def _open_end(packings: Packings, best: Shape, figure: str) -> str | None:
    """Return the headline where the ranking cannot decide: a shape outside it gave more, or the unpacked one is outside it."""
    filled = f"Of the packings that filled the server, {_name(best, lower=True)} gave most, {figure}"
    if packings.overtaking:
        most = max(packings.overtaking, key=lambda shape: shape.rate or 0.0)
        return (
            f"{_name(most)} gave most, {number(most.rate)} user messages/s at {_count(most.connections, 'connection')}, and the server "
            f"was not even full: a lower bound. {filled}."
        )
    if packings.unpacked is None:
        alone = [
            shape for shape in packings.shapes if shape.users_per_request == 1 and shape.rate is not None
        ]
        seen = f" (at least {number(alone[0].rate)}/s)" if alone and alone[0].counted else ""
        return f"{filled}. Whether packing pays is not known: one user message per request cannot be ranked{seen}."
    return None


def _tie(
    packings: Packings, best: Shape, figure: str, equal: Sequence[Shape], evidence: dict[str, Any]
) -> Finding:
    """Say that the best is not alone: which packings cannot be told from it, and which are behind it."""
    behind = [s for s in packings.champions if s is not best and s not in equal]
    names = _joined([_packing(shape) for shape in equal])
    text = f"{_name(best)} gave most, {figure}, but {names} cannot be told from it: the difference is within noise"
    if behind:
        text += f"; {_losses(behind, best)}"
    text += ". Repeat the shapes (--repeats) to tell them apart."
    return Finding(kind="packing", severity="info", text=text, evidence=evidence)


def _nothing_ranked(packings: Packings) -> Finding:
    text = "No packing can be ranked: the server was not full at any of them, or no level counts. Raise --connections or --requests."
    known = [shape for shape in packings.shapes if shape.rate is not None]
    if known:
        most = max(known, key=lambda shape: shape.rate or 0.0)
        text += f" The most that was seen is {number(most.rate)} user messages/s with {_packing(most)} per request, a lower bound."
    return Finding(kind="packing", severity="warning", text=text, evidence={})


def _losses(shapes: Sequence[Shape], best: Shape) -> str:
    """Return how far others are behind, such as "2 per request give 8 % less (111/s)"."""
    return ", ".join(
        f"{shape.users_per_request} per request {'gives' if shape.users_per_request == 1 else 'give'} "
        f"{1 - (_ratio(shape, best) or 0.0):.0%} less ({number(shape.rate)}/s)"
        for shape in shapes
    )


def _reasons(packings: Packings) -> list[Finding]:
    """Hold every other packing against the unpacked one, or against the best where that has no figures."""
    base = packings.reference
    if base is None:
        return []
    found = []
    for shape in packings.champions:
        if shape.users_per_request == base.users_per_request:
            continue
        ratio = _ratio(shape, base)
        changes = changes_between(base, shape)
        text = f"{_name(shape)} against {base.users_per_request}: {_relation(base, shape, ratio)}"
        if shape.users_per_request > base.users_per_request and ratio is not None:
            factor = shape.users_per_request / base.users_per_request
            requests = _column_ratio(shape, base, "request_rate")
            if requests is not None:
                text += (
                    f" ({factor:g} times the messages in a request, {number(requests)} times the requests/s)"
                )
        text += f". {_sentence(changes)}" if changes else ". No figure of the servers tells why."
        evidence = {
            "users_per_request": shape.users_per_request,
            "connections": shape.connections,
            "against": {"users_per_request": base.users_per_request, "connections": base.connections},
            "ratio": ratio,
            "within_noise": not differs(base, shape),
            "reasons": changes,
        }
        found.append(Finding(kind="packing_shape", severity="info", text=text, evidence=evidence))
    return found


def _relation(base: Shape, shape: Shape, ratio: float | None) -> str:
    figures = f"{number(shape.rate)} user messages/s to {number(base.rate)}"
    if ratio is None:
        return figures
    if not differs(base, shape):
        return f"{figures}, alike within noise"
    return f"{figures}, {abs(ratio - 1):.0%} {'more' if ratio > 1 else 'less'}"


def _connections(packings: Packings) -> list[Finding]:
    """Hold N connections against N/k: as many connections, or as many messages in flight."""
    found = []
    for users in sorted(
        {shape.users_per_request for shape in packings.shapes if shape.users_per_request > 1}
    ):
        ranked = [shape for shape in packings.ranking if shape.users_per_request == users]
        if len(ranked) < 2 or not differs(ranked[0], ranked[-1]):
            continue
        more, less = ranked[0], ranked[-1]
        text = (
            f"With {_packing(more)} per request, {_count(more.connections, 'connection')} gave {number(more.rate)} user messages/s and "
            f"{less.connections} gave {number(less.rate)}."
        )
        if more.row["preemptions"] is not None and less.row["preemptions"] is not None:
            text = f"{text[:-1]}, with {more.row['preemptions']:,.0f} and {less.row['preemptions']:,.0f} preemptions."
        evidence = {
            "users_per_request": users,
            "connections": [more.connections, less.connections],
            "user_message_rates": [more.rate, less.rate],
        }
        found.append(Finding(kind="packing_connections", severity="info", text=text, evidence=evidence))
    return found


def _misleading(packings: Packings) -> list[Finding]:
    """Tell where another figure, taken for throughput, would have chosen another packing."""
    best, ranking = packings.best, packings.ranking
    if best is None:
        return []
    found = []
    for name, words in (
        ("request_rate", "requests/s"),
        ("total_token_rate", "all tokens/s, prompts included,"),
    ):
        known = [shape for shape in ranking if shape.row[name] is not None]
        chosen = max(known, key=lambda shape: float(shape.row[name]), default=best)
        if chosen.users_per_request == best.users_per_request or not differs(best, chosen):
            continue
        text = (
            f"By {words} {_packing(chosen)} per request would look best ({number(chosen.row[name])} to {number(best.row[name])}), "
            f"yet it answers {1 - (_ratio(chosen, best) or 0.0):.0%} fewer user messages."
        )
        evidence = {"column": name, "users_per_request": chosen.users_per_request}
        found.append(Finding(kind="packing_misleading", severity="info", text=text, evidence=evidence))
    return found


def _clamped(packings: Packings) -> list[Finding]:
    shapes = [shape for shape in packings.shapes if shape.row["requests_clamped"]]
    if not shapes:
        return []
    parts = [
        f"{shape.row['requests_clamped']:,} of {shape.row['requests_ok']:,} with {_packing(shape)} per request at "
        f"{_count(shape.connections, 'connection')}"
        for shape in shapes
    ]
    text = (
        f"The model's context cut answers short: {', '.join(parts)}. Their user messages count by the share that was answered; a real "
        "user would have got half sentences."
    )
    worst = min(
        (s.row["answered_ratio"] for s in shapes if s.row["answered_ratio"] is not None), default=None
    )
    evidence = {
        "clamped": [_place(shape) | {"requests": shape.row["requests_clamped"]} for shape in shapes],
        "answered_ratio": worst,
    }
    severity = "info" if worst is not None and worst > 1 - _CLAMP_SEVERE else "warning"
    return [Finding(kind="packing_clamped", severity=severity, text=text, evidence=evidence)]


def _overflowed(packings: Packings) -> list[Finding]:
    shapes = [shape for shape in packings.shapes if shape.row["requests_overflowed"]]
    if not shapes:
        return []
    parts = [
        f"{shape.row['requests_overflowed']:,} of {shape.row['requests_planned']:,} with {_packing(shape)} per request"
        for shape in shapes
    ]
    text = f"The server refused requests as longer than its context: {', '.join(parts)}. None of their user messages was answered."
    evidence = {"overflowed": [_place(s) | {"requests": s.row["requests_overflowed"]} for s in shapes]}
    return [Finding(kind="packing_overflow", severity="warning", text=text, evidence=evidence)]


def _unranked(packings: Packings) -> list[Finding]:
    """
    Name the shapes that are left out of the ranking, and warn where one of them may be better than the best.

    Those without a visit that counts are told with the levels that were not judged.
    """
    found = []
    for shape in packings.shapes:
        if shape.is_ranked or not shape.counted:
            continue
        evidence = shape.visits[-1].verdict.evidence
        because = f": {evidence[0]}" if evidence else ""
        text = (
            f"Not ranked: {_packing(shape)} per request at {_count(shape.connections, 'connection')} "
            f"({str(shape.verdict).replace('_', ' ')}{because})."
        )
        above = shape in packings.overtaking
        if above:
            text += f" It gave {number(shape.rate)} user messages/s, more than the best: give it more connections."
        found.append(
            Finding(
                kind="packing_unranked",
                severity="warning" if above else "info",
                text=text,
                evidence=_place(shape) | {"verdict": str(shape.verdict), "user_message_rate": shape.rate},
            )
        )
    return found


def _slo(packings: Packings) -> list[Finding]:
    asked = [shape for shape in packings.shapes if shape.row["goodput_rate"] is not None]
    if not asked:
        return []
    kept = [s for s in asked if all((v.case.reading.good_ratio or 0.0) >= GOOD_RATIO for v in s.visits)]
    if not kept:
        text = "No shape met the SLOs with 99 % of its requests; a packed request asks for more tokens under the same bounds."
        return [Finding(kind="slo", severity="warning", text=text)]
    names = _joined(
        [f"{_packing(shape)} per request at {_count(shape.connections, 'connection')}" for shape in kept]
    )
    text = f"{names[:1].upper()}{names[1:]} met every SLO with 99 % of the requests."
    return [Finding(kind="slo", severity="info", text=text, evidence={"kept": [_place(s) for s in kept]})]


def _ratio(shape: Shape, base: Shape | None) -> float | None:
    if base is None or not base.rate or shape.rate is None:
        return None
    return shape.rate / base.rate


def _column_ratio(shape: Shape, base: Shape, name: str) -> float | None:
    one, other = shape.row[name], base.row[name]
    return None if one is None or not other else float(one) / float(other)


def _place(shape: Shape) -> dict[str, Any]:
    return {"users_per_request": shape.users_per_request, "connections": shape.connections}


def _packing(shape: Shape) -> str:
    return "1 message" if shape.users_per_request == 1 else f"{shape.users_per_request} messages"


def _name(shape: Shape, *, lower: bool = False) -> str:
    name = "one user message" if shape.users_per_request == 1 else f"{shape.users_per_request} user messages"
    name = f"{name} per request"
    return name if lower else f"{name[:1].upper()}{name[1:]}"


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _joined(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _sentence(parts: Sequence[str]) -> str:
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}."
