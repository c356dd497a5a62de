"""
The findings of a run in plain language (floor F3, pure), made from the numbers: where they say the opposite, so does the text.

Each function looks for one thing and returns what it found. Findings that need the request rows (foreign traffic, uneven clients,
repeated prompts) are made where these are read, and join the list.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from distbench.analysis.case import LevelCase
from distbench.analysis.diagnosis import Diagnosis, Limit
from distbench.analysis.findings import Finding, Judgement, worst_client
from distbench.analysis.remarks_server import server_remarks
from distbench.analysis.saturation import Verdict

_FEW_FOR_P99 = 100
_BUNDLED_RATIO = 0.05
_SHORT_ANSWER_RATIO = 0.95
_LIMIT_WORDS = {
    Limit.SEQUENCES: "the number of sequences the engine runs at once",
    Limit.KV_MEMORY: "KV-cache memory",
    Limit.BATCHED_TOKENS: "the tokens the engine takes in one step",
    Limit.PREFILL: "prefill: the work of reading prompts",
    Limit.DECODE: "decode: an engine step takes longer with every sequence",
    Limit.SERVER_FRONTEND: "the server's front end, not its engine",
    Limit.NETWORK: "buffering between server and client",
    Limit.CLIENT: "the load generator, not the server",
}


def remarks(judgement: Judgement, *, output_tokens: float | None = None) -> list[Finding]:
    """
    Return everything there is to say of a run from its levels.

    Args:
        judgement: Of the run.
        output_tokens: Tokens asked per request where every request asks the same; None: not comparable.
    """
    makers: tuple[Callable[[Judgement], list[Finding]], ...] = (
        _ceiling,
        limit_remarks,
        _knee,
        _decline,
        _slo,
        client_remarks,
        server_remarks,
        level_remarks,
    )
    found = [finding for make in makers for finding in make(judgement)]
    return [*found, *_short_answers(judgement, output_tokens)]


def level_remarks(judgement: Judgement) -> list[Finding]:
    """Return what is to be said of single levels: failures, what was not judged, and figures that are uncertain."""
    makers = (_failures, _not_judged, _few_samples, _bundled)
    return [finding for make in makers for finding in make(judgement)]


def number(value: float | None) -> str:
    """Return a rate for people: three significant digits, whole and with thousands separators from 100 on."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def connections_list(cases: Sequence[LevelCase]) -> str:
    """Return the distinct settings of some levels, such as "8, 16 and 32 connections", packings named where there are any."""
    settings = sorted({(case.users_per_request, case.connections) for case in cases})
    if any(users > 1 for users, _ in settings):
        values = [f"{connections} connections x {users} messages" for users, connections in settings]
        return values[0] if len(values) == 1 else f"{', '.join(values[:-1])} and {values[-1]}"
    values = [str(connections) for _, connections in settings]
    joined = values[0] if len(values) == 1 else f"{', '.join(values[:-1])} and {values[-1]}"
    return f"{joined} connection{'' if values == ['1'] else 's'}"


def _ceiling(judgement: Judgement) -> list[Finding]:
    found = judgement.ceiling
    if found is None:
        known = [level.case.row["invalid_reason"] for level in judgement.levels]
        reason = judgement.stop.text if judgement.stop else next(filter(None, known), "nothing was measured")
        return [Finding(kind="ceiling", severity="error", text=f"There is no figure: {reason}.")]
    peak = found.peak
    figure = f"{number(peak.output_token_rate)} output tokens/s"
    if peak.request_rate is not None:
        figure += f" ({number(peak.request_rate)} requests/s)"
    figure += f" at {peak.connections} connection{'s' if peak.connections != 1 else ''}"
    if peak.interval is not None:
        low, high = number(peak.interval[0]), number(peak.interval[1])
        figure += f" (95 % interval {low} to {high} from {peak.readings} repeats)"
    evidence = {
        "connections": peak.connections,
        "output_token_rate": peak.output_token_rate,
        "request_rate": peak.request_rate,
        "interval": peak.interval,
        "readings": peak.readings,
        "relative_sd": found.scatter.relative_sd if found.scatter.degrees else None,
    }
    severity, text = _ceiling_text(judgement, figure)
    return [Finding(kind="ceiling", severity=severity, text=text, evidence=evidence)]


def _ceiling_text(judgement: Judgement, figure: str) -> tuple[str, str]:
    search = judgement.stop is not None
    if judgement.verdict is Verdict.SATURATED:
        return "good", f"The server was full: {'its capacity is ' if search else ''}{figure}."
    if judgement.verdict is Verdict.CLIENT_LIMITED:
        return "error", f"The client was the limit: {figure} is a lower bound, not the server's capacity."
    if judgement.verdict is Verdict.NOT_SATURATED:
        raised = f" {_sentence(judgement.stop.text)}" if judgement.stop is not None else ""
        return "warning", f"Not saturated: {figure} is a lower bound, not the capacity.{raised}"
    if judgement.verdict is Verdict.UNSTABLE:
        return (
            "warning",
            f"Throughput drifted while it was measured: {figure} is no steady figure. Raise --requests.",
        )
    return "warning", f"{figure}; whether the server was full is not known: there is no evidence either way."


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def limit_remarks(judgement: Judgement) -> list[Finding]:
    """Return what the limit is at the peak, and what to change."""
    if judgement.limit is Limit.NONE_FOUND:
        if judgement.verdict is not Verdict.SATURATED:
            return []
        text = "The server was full, but its metrics name no limit."
        return [Finding(kind="limit", severity="info", text=text, evidence={"limit": str(judgement.limit)})]
    diagnosis = next(
        (level.diagnosis for level in judgement.at_peak if level.diagnosis.limit is judgement.limit),
        Diagnosis(limit=judgement.limit, evidence=()),
    )
    because = f": {'; '.join(diagnosis.evidence)}" if diagnosis.evidence else ""
    subject = _LIMIT_WORDS[judgement.limit]
    opening = f"There is {subject}" if judgement.limit is Limit.NETWORK else f"The limit is {subject}"
    text = f"{opening}{because}. To change it: {diagnosis.remedy}."
    severity = "warning" if judgement.limit in (Limit.CLIENT, Limit.NETWORK) else "info"
    evidence = {"limit": str(judgement.limit), "signs": diagnosis.evidence, "remedy": diagnosis.remedy}
    return [Finding(kind="limit", severity=severity, text=text, evidence=evidence)]


def _knee(judgement: Judgement) -> list[Finding]:
    found = judgement.ceiling
    if found is None or found.knee.connections >= found.peak.connections:
        return []
    share = found.knee.output_token_rate / found.peak.output_token_rate
    knee, peak = (_median_ttft(judgement, c) for c in (found.knee.connections, found.peak.connections))
    text = f"{found.knee.connections} connections already give {share:.0%} of the peak"
    if knee is not None and peak is not None:
        change = "less" if knee < peak else "no less"
        text += f", with {change} waiting: time to first token {knee * 1000:,.0f} ms there, {peak * 1000:,.0f} ms at the peak"
    evidence = {
        "connections": found.knee.connections,
        "ratio": share,
        "ttft_p50_s": knee,
        "peak_ttft_p50_s": peak,
    }
    return [Finding(kind="knee", severity="info", text=f"{text}.", evidence=evidence)]


def _median_ttft(judgement: Judgement, connections: int) -> float | None:
    values = [
        value for case in judgement.ladder.at(connections) if (value := case.row["ttft_p50_s"]) is not None
    ]
    return sorted(values)[len(values) // 2] if values else None


def _decline(judgement: Judgement) -> list[Finding]:
    if judgement.ceiling is None or judgement.ceiling.decline is None:
        return []
    decline = judgement.ceiling.decline
    text = (
        f"More connections make it worse: at {decline.connections} throughput is {decline.ratio:.0%} of the peak's. "
        f"Keep the number of requests at the server near {judgement.ceiling.peak.connections}."
    )
    evidence = {"connections": decline.connections, "ratio": decline.ratio}
    return [Finding(kind="decline", severity="warning", text=text, evidence=evidence)]


def _slo(judgement: Judgement) -> list[Finding]:
    if all(level.case.reading.good_ratio is None for level in judgement.levels):
        return []
    slo = judgement.slo
    if slo is None:
        return [
            Finding(kind="slo", severity="warning", text="No level met the SLOs with 99 % of its requests.")
        ]
    text = (
        f"Up to {slo.connections} connections {slo.good_ratio:.1%} of the requests met every SLO: "
        f"{number(slo.goodput_rate)} good requests/s."
    )
    evidence = {
        "connections": slo.connections,
        "good_ratio": slo.good_ratio,
        "goodput_rate": slo.goodput_rate,
    }
    return [Finding(kind="slo", severity="info", text=text, evidence=evidence)]


def client_remarks(judgement: Judgement) -> list[Finding]:
    """Return whether the client was the limit, with the proof."""
    found = []
    if judgement.verification is not None:
        verified = judgement.verification
        found.append(
            Finding(
                kind="verify_client",
                severity="good" if verified.agrees else "error",
                text=_sentence(verified.text),
                evidence={"ratio": verified.ratio},
            )
        )
    limited = [level.case for level in judgement.levels if level.case.client.limited]
    if limited:
        text = f"The client was the limit at {connections_list(limited)}: {'; '.join(limited[-1].client.evidence)}."
        found.append(Finding(kind="client_limited", severity="error", text=text))
    elif all(level.case.client.is_proven for level in judgement.at_peak):
        text = f"The client was not the limit: {', '.join(worst_client(judgement).client.evidence)}."
        found.append(Finding(kind="client_proof", severity="good", text=text))
    else:
        unproven = worst_client(judgement).client.evidence
        text = f"It is not proven that the client was not the limit: {', '.join(unproven)}."
        found.append(Finding(kind="client_proof", severity="warning", text=text))
    health = max((level.case.client for level in judgement.at_peak), key=lambda h: h.lag_p99_s or 0.0)
    found += [Finding(kind="client_caveat", severity="info", text=_sentence(text)) for text in health.caveats]
    return found


def _failures(judgement: Judgement) -> list[Finding]:
    failed = sum(case.row["requests_failed"] for case in judgement.ladder.cases)
    done = sum(case.row["requests_ok"] for case in judgement.ladder.cases) + failed
    if not failed:
        return []
    where = [case for case in judgement.ladder.cases if case.row["requests_failed"]]
    text = f"{failed:,} of {done:,} requests failed, at {connections_list(where)}."
    severity = "error" if failed * 2 > done else "warning"
    return [Finding(kind="failures", severity=severity, text=text, evidence={"failed": failed, "done": done})]


def _not_judged(judgement: Judgement) -> list[Finding]:
    found = []
    invalid: dict[str, list[LevelCase]] = {}
    for level in judgement.levels:
        if not level.case.row["valid"]:
            invalid.setdefault(level.case.row["invalid_reason"] or "unknown reason", []).append(level.case)
    judged = {
        (level.case.users_per_request, level.case.connections)
        for level in judgement.levels
        if level.case.reading.counts
    }
    for reason, cases in invalid.items():
        # Where another reading of the same setting counts, nothing is missing.
        is_made_up_for = all((case.users_per_request, case.connections) in judged for case in cases)
        text = f"Not judged at {connections_list(cases)}: {reason}."
        found.append(
            Finding(
                kind="invalid_level",
                severity="info" if is_made_up_for else "warning",
                text=f"{text} Another reading there counts." if is_made_up_for else text,
                evidence={"levels": [case.level for case in cases], "reason": reason},
            )
        )
    drifting = [
        level.case
        for level in judgement.levels
        if level.case.stability and level.case.stability.stable is False
    ]
    if drifting and drifting[0].stability is not None:
        text = f"Throughput drifted at {connections_list(drifting)} ({drifting[0].stability.text}): a cold server or a change on it."
        found.append(
            Finding(
                kind="drift",
                severity="warning",
                text=text,
                evidence={"levels": [case.level for case in drifting]},
            )
        )
    return found


def _few_samples(judgement: Judgement) -> list[Finding]:
    few = [case for case in judgement.ladder.cases if 0 < case.row["ttft_n"] < _FEW_FOR_P99]
    if not few:
        return []
    least = min(case.row["ttft_n"] for case in few)
    text = f"A p99 of fewer than 100 requests is little more than the maximum (n = {least} at the least), at {connections_list(few)}."
    return [Finding(kind="few_samples", severity="info", text=text, evidence={"least": least})]


def _bundled(judgement: Judgement) -> list[Finding]:
    flagged = [case for case in judgement.ladder.cases if (case.row["bundled_ratio"] or 0.0) > _BUNDLED_RATIO]
    if not flagged:
        return []
    most = max(case.row["bundled_ratio"] for case in flagged)
    text = (
        f"Up to {most:.0%} of the chunks came together with others, at {connections_list(flagged)}: "
        "gaps between chunks are less certain there, throughput is not."
    )
    return [Finding(kind="bundled", severity="warning", text=text, evidence={"bundled_ratio": most})]


def _short_answers(judgement: Judgement, output_tokens: float | None) -> list[Finding]:
    if output_tokens is None:
        return []
    short = [
        case
        for case in judgement.ladder.cases
        if (mean := case.row["completion_tokens_mean"]) is not None
        and mean < _SHORT_ANSWER_RATIO * output_tokens
    ]
    if not short:
        return []
    least = min(case.row["completion_tokens_mean"] for case in short)
    text = (
        f"Answers were shorter than asked: {number(least)} of {number(output_tokens)} tokens at {connections_list(short)}. "
        "The model stopped early, or the context clamped them; tokens are counted as they came."
    )
    evidence = {"completion_tokens_mean": least, "asked": output_tokens}
    return [Finding(kind="short_answers", severity="warning", text=text, evidence=evidence)]
