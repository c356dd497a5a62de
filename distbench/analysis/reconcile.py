"""
Do the clients' figures and the servers' counters tell the same story? (floor F3, pure)

The same population stands on both sides of every comparison. A server counts a request as finished only when it was answered to the end,
but counts the tokens of aborted ones too; and what was sent but not answered to the end, the client knows in part only. So each check
has a range that the server's figure must lie in. More than that is traffic of somebody else, and the level is not valid.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pyarrow as pa

from distbench.analysis.arrays import Bools, Floats, flat_lists, is_word, numbers, rows_where, sums_of_rows
from distbench.units import NS_PER_S

# Enough for a health probe or two beside a level, far below what bends a figure.
TOLERANCE_RATIO = 0.001
LITTLE_TOLERANCE_RATIO = 0.05
HELD_RATIO = 0.97
CLIENT_COLUMNS = (
    "outcome",
    "sent_ns",
    "finish_reason",
    "prompt_tokens",
    "completion_tokens",
    "expected_prompt_tokens",
    "max_tokens",
    "chunk_us",
    "attempts",
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ClientSums:
    """
    What the clients saw of a level, warm-up and measured requests together, as the servers' counters see them.

    Attributes:
        answered: Requests answered to the end.
        unfinished: Requests that were sent and failed or were cut: a server may have finished, aborted or refused them. Retries count.
        prompt_tokens, completion_tokens: Of the answered requests.
        unfinished_prompt_max, unfinished_completion_max: The most tokens that a server can have counted for the unfinished requests; inf
            where the client does not know what it asked for.
        unfinished_completion_seen: Chunks that did arrive of the unfinished requests; the least that a server has counted.
        untold: Answered requests without a token count: token checks mean nothing then.
    """

    answered: int
    unfinished: int
    prompt_tokens: int
    completion_tokens: int
    unfinished_prompt_max: float = 0.0
    unfinished_completion_max: float = 0.0
    unfinished_completion_seen: int = 0
    untold: int = 0


def client_sums(rows: pa.Table) -> ClientSums:
    """Sum up all rows of one level, columns CLIENT_COLUMNS; those that were never sent count for nothing."""
    ok = is_word(rows, "outcome", "ok")
    open_end = is_word(rows, "outcome", "failed", "cut") & ~np.isnan(numbers(rows, "sent_ns"))
    open_end |= is_word(rows, "outcome", "lost")  # its client died: sent or not, nobody knows
    prompt, completion = numbers(rows, "prompt_tokens"), numbers(rows, "completion_tokens")
    # Each further attempt was a request of its own to the server, which refused or aborted it.
    attempts = numbers(rows, "attempts")
    resent = np.clip(attempts[ok] - 1, 0, None).sum() + np.clip(attempts[open_end] - 1, 0, None).sum()
    expected = np.where(np.isnan(prompt), numbers(rows, "expected_prompt_tokens"), prompt)
    largest_prompt = float(np.nanmax(prompt[ok])) if (~np.isnan(prompt[ok])).any() else math.inf
    # What the workload aimed at may be approximate: the largest prompt that was seen bounds it too.
    bound = np.fmax(np.where(np.isnan(expected), largest_prompt, expected), largest_prompt)
    limit = np.where(np.isnan(numbers(rows, "max_tokens")), math.inf, numbers(rows, "max_tokens"))
    return ClientSums(
        answered=int(ok.sum()),
        unfinished=int(open_end.sum() + resent),
        prompt_tokens=int(np.nansum(prompt[ok])),
        completion_tokens=int(np.nansum(completion[ok])),
        unfinished_prompt_max=_bound(bound, open_end, resent, largest_prompt),
        unfinished_completion_max=_bound(limit, open_end, resent, _largest(limit)),
        unfinished_completion_seen=_chunks(rows, open_end),
        untold=int((ok & (np.isnan(prompt) | np.isnan(completion))).sum()),
    )


def _largest(values: Floats) -> float:
    return float(values.max()) if len(values) else math.inf


def _bound(each: Floats, unfinished: Bools, resent: float, largest: float) -> float:
    total = float(each[unfinished].sum())
    return total + float(resent) * largest if resent else total


def _chunks(rows: pa.Table, mask: Bools) -> int:
    if "chunk_us" not in rows.schema.names:
        return 0
    flat, offsets = flat_lists(rows_where(rows, mask, ("chunk_us",))["chunk_us"])
    return int(sums_of_rows(np.ones(len(flat)), offsets).sum())


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ServerDeltas:
    """How far the servers' counters went during a level, from settled to settled; None: not exported."""

    requests_finished: float | None = None
    prompt_tokens: float | None = None
    completion_tokens: float | None = None
    finished_prompt_tokens: float | None = None
    finished_completion_tokens: float | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """
    One comparison.

    Attributes:
        name: What is compared.
        client, server: Both figures, in the unit of the name; None: not known.
        low, high: The range that the server's figure must lie in, tolerance included.
        passed: None: could not be checked.
        reason: Why it passed with another figure, failed, or could not be checked; None: the figures are equal.
    """

    name: str
    client: float | None
    server: float | None
    low: float | None
    high: float | None
    passed: bool | None
    reason: str | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Reconciliation:
    """
    All comparisons of one level.

    Attributes:
        checks: In a fixed order.
        reconciled: True where every check that could be made passed, False where one failed, None where none could be made.
        foreign_traffic: A server counted more than the clients can have caused: somebody else was there, the level is not valid.
        tolerance_ratio: Of the client's figure.
    """

    checks: tuple[Check, ...]
    reconciled: bool | None
    foreign_traffic: bool
    tolerance_ratio: float

    @property
    def problem(self) -> str | None:
        """Return the first failure in one sentence; None where nothing failed."""
        return next((f"{c.name}: {c.reason}" for c in self.checks if c.passed is False), None)


def reconcile(
    client: ClientSums, server: ServerDeltas, *, tolerance_ratio: float = TOLERANCE_RATIO
) -> Reconciliation:
    """
    Compare the clients' sums with the servers' counter deltas.

    Finished requests and their tokens: answered requests, plus at most those that were left unfinished (a server may have finished one
    whose end the client did not wait for). Total tokens: those of the answered requests plus what the unfinished ones may have cost.
    """
    seen = client.unfinished_completion_seen
    checks = [
        _check(
            "requests finished",
            client.answered,
            0,
            client.unfinished,
            server.requests_finished,
            tolerance_ratio,
        ),
    ]
    pairs = (
        ("prompt tokens", client.prompt_tokens, 0, client.unfinished_prompt_max, server.prompt_tokens),
        (
            "output tokens",
            client.completion_tokens,
            seen,
            client.unfinished_completion_max,
            server.completion_tokens,
        ),
        (
            "prompt tokens of finished requests",
            client.prompt_tokens,
            0,
            client.unfinished_prompt_max,
            server.finished_prompt_tokens,
        ),
        (
            "output tokens of finished requests",
            client.completion_tokens,
            0,
            client.unfinished_completion_max,
            server.finished_completion_tokens,
        ),
    )
    for name, known, least, most, delta in pairs:
        if client.untold:
            reason = f"{client.untold} answers came without a token count"
            checks.append(_unchecked(name, known, delta, reason))
        else:
            checks.append(_check(name, known, least, max(least, most), delta, tolerance_ratio))
    made = [check.passed for check in checks if check.passed is not None]
    surplus = any(
        c.passed is False and c.server is not None and c.high is not None and c.server > c.high
        for c in checks
    )
    return Reconciliation(
        checks=tuple(checks),
        reconciled=all(made) if made else None,
        foreign_traffic=surplus,
        tolerance_ratio=tolerance_ratio,
    )


def _unchecked(name: str, client: float | None, server: float | None, reason: str) -> Check:
    return Check(name=name, client=client, server=server, low=None, high=None, passed=None, reason=reason)


def _check(
    name: str,
    client: float,
    least_more: float,
    most_more: float,
    server: float | None,
    tolerance_ratio: float,
) -> Check:
    if server is None:
        return _unchecked(name, client, None, "the server does not export it")
    slack = tolerance_ratio * (client + (most_more if math.isfinite(most_more) else 0.0))
    low, high = client + least_more - slack, client + most_more + slack
    reason = None
    if server < low:
        reason = f"the servers counted {server:.0f}, the clients {client + least_more:.0f}: {low - server:.0f} are missing"
    elif server > high:
        reason = f"the servers counted {server:.0f}, the clients can explain {client + most_more:.0f}: other traffic"
    elif server != client:
        reason = (
            "within what requests that were cut or failed may have cost"
            if most_more
            else f"within the tolerance of {tolerance_ratio:.1%}"
        )
    return Check(
        name=name,
        client=client,
        server=server,
        low=low,
        high=high,
        passed=low <= server <= high,
        reason=reason,
    )


def little(rows: pa.Table, *, start_ns: int, end_ns: int, in_flight_mean: float) -> Check:
    """
    Hold the requests in flight against Little's law: ends per second x mean time in the system.

    Args:
        rows: Columns sent_ns and end_ns, all phases.
        start_ns: Start of the window.
        end_ns: End of the window.
        in_flight_mean: Measured over the window from the same stamps; or at the server, which is the stronger check.

    Source: L = lambda W. At the two edges of a window up to one generation of requests is cut, half of it on average on each side, so
    the tolerance grows by the share that a generation is of what ended.
    """
    sent, end = numbers(rows, "sent_ns"), numbers(rows, "end_ns")
    inside = ~np.isnan(sent) & (end > start_ns) & (end <= end_ns)
    num_ended = int(inside.sum())
    if num_ended == 0 or end_ns <= start_ns:
        return _unchecked("in flight by Little's law", None, in_flight_mean, "no request ended in the window")
    rate = num_ended / ((end_ns - start_ns) / NS_PER_S)
    expected = rate * float((end - sent)[inside].mean()) / NS_PER_S
    slack = expected * (LITTLE_TOLERANCE_RATIO + min(1.0, in_flight_mean / num_ended))
    low, high = expected - slack, expected + slack
    passed = low <= in_flight_mean <= high
    reason = (
        None
        if passed
        else f"{rate:.4g} ends/s x mean time gives {expected:.4g}, {in_flight_mean:.4g} were seen"
    )
    return Check(
        name="in flight by Little's law",
        client=expected,
        server=in_flight_mean,
        low=low,
        high=high,
        passed=passed,
        reason=reason,
    )


def held(*, asked: int, connected_mean: float | None, in_flight_mean: float | None) -> tuple[Check, Check]:
    """
    Hold the connections asked for against those that were open, and against the requests in flight (closed loop).

    Each must reach HELD_RATIO of what was asked; None: not known.
    """
    low = HELD_RATIO * asked

    def check(name: str, value: float | None) -> Check:
        if value is None:
            return _unchecked(name, asked, None, "no sample")
        passed = value >= low
        reason = None if passed else f"{asked} were asked, {value:.4g} were held: less than {HELD_RATIO:.0%}"
        return Check(name=name, client=asked, server=value, low=low, high=None, passed=passed, reason=reason)

    return check("connected of asked", connected_mean), check("in flight of asked", in_flight_mean)
