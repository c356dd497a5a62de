"""
The headline of a report: what the number means, and what to do next, in words (floor F4, pure).

Everything said here is read off findings.json and levels.parquet; nothing is judged anew.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from distbench.report.cells import rate

Row = Mapping[str, Any]

LIMITS = {
    "sequences": "the number of sequences that the server works on at once",
    "kv_memory": "memory for the KV cache",
    "batched_tokens": "the tokens that the server takes into one step",
    "prefill": "prefill: reading the prompts",
    "decode": "decode: the time of a step grows with the batch",
    "server_frontend": "the server's front end, not its engine",
    "network": "the network, or a proxy that holds answers back",
    "client": "the load-generating client",
    "none_found": "none found",
}
_TONES = {
    "saturated": "good",
    "not_saturated": "warn",
    "client_limited": "bad",
    "unstable": "warn",
    "unknown": "plain",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Headline:
    """
    The first thing that is read.

    Attributes:
        verdict: One or two words.
        sentence: What the number means.
        advice: What to do next; "" where nothing follows.
        tone: good | warn | bad | plain.
    """

    verdict: str
    sentence: str
    advice: str
    tone: str


def headline(rows: Sequence[Row], findings: Mapping[str, Any]) -> Headline:
    """
    Say what a run found.

    Args:
        rows: Rows of levels.parquet.
        findings: findings.json; empty where there is none.
    """
    if rows and not any(row["requests_ok"] for row in rows):
        return Headline(
            "all failed",
            "No request was answered: there is nothing to measure.",
            "See the errors; distbench doctor URL checks the target before time is spent.",
            "bad",
        )
    if not rows:
        return Headline(
            "no levels",
            "The run ended before a level was finished.",
            "Run it again with a new --output.",
            "bad",
        )
    verdict = findings.get("verdict") or "unknown"
    return Headline(
        verdict.replace("_", " "),
        _sentence(verdict, findings, rows),
        _advice(verdict, findings),
        _TONES.get(verdict, "plain"),
    )


def _sentence(verdict: str, findings: Mapping[str, Any], rows: Sequence[Row]) -> str:
    packing = [f for f in findings.get("findings", ()) if f.get("kind") == "packing"]
    if packing:
        return str(packing[0]["text"])
    peak = findings.get("peak")
    if not peak:
        return _single(verdict, rows)
    amount = f"{rate(peak['output_token_rate'])} output tokens/s ({rate(peak['request_rate'])} requests/s)"
    at = f"at {_connections(peak['connections'])}"
    if verdict == "client_limited":
        return (
            f"The client was the limit: {amount} {at} is what it could send, not what the server can carry."
        )
    if findings.get("lower_bound"):
        return f"The server carries at least {amount} {at}. This is a lower bound, not its capacity."
    if verdict == "saturated":
        return f"The server carries {amount} {at}. It was full: more connections do not make it faster."
    if verdict == "unstable":
        return f"The best level gave {amount} {at}, but the rate drifted while it was measured."
    return f"The best level gave {amount} {at}. Whether the server was full could not be told."


def _single(verdict: str, rows: Sequence[Row]) -> str:
    row = max(rows, key=lambda r: r["output_token_rate"] or 0.0)
    figure = f"{rate(row['output_token_rate'])} output tokens/s at {_connections(row['connections'])}"
    meaning = {
        "saturated": "the server was full",
        "not_saturated": "the server was not full, so this is the load and not the capacity",
        "client_limited": "the client was the limit, so this is not the server's figure",
        "unstable": "the rate drifted while it was measured",
    }.get(verdict, "whether the server was full could not be told")
    return f"{figure}: {meaning}."


def plural(count: int, word: str) -> str:
    """Return a number and its word, such as 1 client or 1,024 clients."""
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"


def _connections(count: int) -> str:
    return plural(count, "connection")


def _advice(verdict: str, findings: Mapping[str, Any]) -> str:
    if verdict == "client_limited":
        return "Give it more clients (--clients, or more machines in the cluster) and measure again."
    if verdict == "not_saturated" or findings.get("lower_bound"):
        return "Raise the connections (--max for capacity, --connections for run) until the server is full."
    if verdict == "unstable":
        return "Measure longer (--requests or --duration), and look at the timeline for what changed."
    knee, peak = findings.get("knee"), findings.get("peak")
    if verdict == "saturated" and knee and peak and knee["connections"] < peak["connections"]:
        return (
            f"{_connections(knee['connections'])} already give {rate(knee['output_token_rate'])} output tokens/s "
            "with shorter waits: a good limit for production."
        )
    limit = findings.get("limit")
    if verdict == "saturated" and limit and limit != "none_found":
        return f"What stops it: {LIMITS.get(limit, limit)}."
    return ""
