"""
One level in figures (floor F3, pure): what levels.parquet says of it as far as the clients know.

The columns that come from the servers and the verdict stay None here; level_row.merged lays them over. A level may be large: rows are
given without their chunk times, which come in parts and are added up.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa

from distbench.analysis.accounting import Accounting, account
from distbench.analysis.arrays import Bools, Floats, is_word, measured, numbers, rows_where, some
from distbench.analysis.latency import LATENCY_COLUMNS, Gaps, mean_gap_s, request_latencies
from distbench.analysis.level_row import LevelRow, empty_level_row
from distbench.analysis.quantiles import QUANTILES, mean, quantiles
from distbench.analysis.rates import RATE_COLUMNS, WholeSums, WindowSums, expected_of, per_second, whole_sums
from distbench.analysis.tallies import ErrorCount, count_errors, requests_by_target, user_stamps_ratio
from distbench.analysis.windows import (
    WINDOW_COLUMNS,
    InFlight,
    Turnarounds,
    Window,
    in_flight,
    measure_window,
    turnarounds,
)
from distbench.core.levels import LevelSpec
from distbench.core.plan import Slo

CHUNK_COLUMNS = tuple(dict.fromkeys((*RATE_COLUMNS, *LATENCY_COLUMNS)))
ROW_COLUMNS = tuple(
    dict.fromkeys(
        (
            *WINDOW_COLUMNS,
            "finish_reason",
            "prompt_tokens",
            "completion_tokens",
            "max_tokens",
            "user_messages",
            "request_id",
            "target",
            "error_kind",
            "http_status",
            "error_text",
            "cached_tokens",
            "client_lag_us",
            "stamp",
        )
    )
)
_QS = list(QUANTILES.values())
_NOTHING: Floats = np.zeros(0)
_LATENCIES = ("ttft", "ttfo", "tpot", "e2e", "response")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LevelSummary:
    """
    A level's figures and what they rest on.

    Attributes:
        row: Of levels.parquet; the servers' columns and the verdict are None.
        accounting: Where the requests went.
        window: None where nothing was ever sent.
        in_flight, turnarounds: Over the window; None without one, turnarounds in open loop too.
        errors: Kinds of failure, the most frequent first.
        target_requests: Target -> answered requests.
        slice_rates: Output tokens/s in equal slices of the window, in order (rates.NUM_SLICES); empty without a window.
        num_negative: Intervals below zero, a fault of ours.
        user_stamps_ratio: Share of the answered requests that the kernel did not stamp; None without one.
        ttft_mean_s, e2e_mean_s: Over the same requests as the row's quantiles, to hold against servers, which tell only means.
    """

    row: LevelRow
    accounting: Accounting
    window: Window | None
    in_flight: InFlight | None
    turnarounds: Turnarounds | None
    errors: tuple[ErrorCount, ...]
    target_requests: Mapping[str, int]
    slice_rates: tuple[float, ...]
    num_negative: int
    user_stamps_ratio: float | None
    ttft_mean_s: float | None
    e2e_mean_s: float | None


def summarize_level(
    spec: LevelSpec,
    rows: pa.Table,
    *,
    num_clients: int,
    num_targets: int,
    slos: Sequence[Slo] = (),
    chunk_batches: Iterable[pa.Table] | None = None,
) -> LevelSummary:
    """
    Sum up one level.

    Args:
        spec: The level.
        rows: All its rows, columns ROW_COLUMNS (more do no harm).
        num_clients: Clients that took part.
        num_targets: Base URLs of the run.
        slos: Bounds for the goodput; none: it stays None.
        chunk_batches: The same rows again in parts, columns CHUNK_COLUMNS; None: rows holds these columns too.
    """
    window = measure_window(spec, rows)
    accounting = account(rows, planned=spec.requests)
    row = empty_level_row(
        level=spec.level,
        repeat=spec.repeat,
        connections=spec.connections,
        clients=num_clients,
        targets=num_targets,
        pattern=spec.pattern,
        users_per_request=spec.users_per_request,
        offered_rate=spec.rate_rps,
        **{f"requests_{word}": getattr(accounting, word) for word in _OUTCOME_COLUMNS},
        valid=window is not None and window.valid and accounting.balanced,
    )
    load = turns = None
    streams = None
    if window is not None:
        load = in_flight(rows, window)
        turns = None if spec.is_open_loop else turnarounds(rows, window, spec.connections)
        streams = _Streams(window, rows, slos)
        for batch in [rows] if chunk_batches is None else chunk_batches:
            streams.add(batch)
        row |= _window_columns(window, rows, streams, load, turns)
        row |= _whole_columns(window, whole_sums(rows))
    row["invalid_reason"] = _invalid_reason(window, accounting)
    return LevelSummary(
        row=row,
        accounting=accounting,
        window=window,
        in_flight=load,
        turnarounds=turns,
        errors=count_errors(rows),
        target_requests=requests_by_target(rows),
        slice_rates=() if streams is None else tuple(streams.sums.slice_rates()),
        num_negative=0 if streams is None else streams.num_negative,
        user_stamps_ratio=user_stamps_ratio(rows),
        ttft_mean_s=None if streams is None else streams.means.get("ttft"),
        e2e_mean_s=None if streams is None else streams.means.get("e2e"),
    )


_OUTCOME_COLUMNS = ("planned", "ok", "failed", "cut", "dropped", "lost")


class _Streams:
    """What is added up over the parts of a level that bear chunk times."""

    def __init__(self, window: Window, rows: pa.Table, slos: Sequence[Slo]) -> None:
        self._window = window
        self._slos = slos
        self.sums = WindowSums(window, expected_of(rows))
        self.gaps = Gaps()
        self.good_requests = 0.0
        self.num_negative = 0
        self.means: dict[str, float | None] = {}
        self._latencies: dict[str, list[Floats]] = {name: [_NOTHING] for name in _LATENCIES}
        self._send_lags: list[Floats] = [_NOTHING]

    def add(self, batch: pa.Table) -> None:
        inside = self.sums.add(batch)
        sent = _sent_inside(batch, self._window)
        chosen = sent & is_word(batch, "outcome", "ok")
        latencies = request_latencies(batch)
        self.num_negative += latencies.num_negative
        for name, parts in self._latencies.items():
            parts.append(_present(getattr(latencies, name)[chosen]))
        self._send_lags.append(_present(latencies.send_lag[sent]))
        self.gaps.add(rows_where(batch, chosen, ("chunk_us",))["chunk_us"])
        if self._slos:
            self.good_requests += float(inside.requests[meets_all(batch, self._slos)].sum())

    def columns(self, window: Window) -> LevelRow:
        """Return the columns that are made here."""
        out: LevelRow = {
            "goodput_rate": per_second(self.good_requests, window.seconds) if self._slos else None,
            "bundled_ratio": self.gaps.bundled_ratio,
            "send_lag_p99_s": _p99(np.concatenate(self._send_lags)),
        }
        for name in _LATENCIES:
            values = np.concatenate(
                self._latencies.pop(name)
            )  # popped: with its copy it would be there twice
            self.means[name] = mean(values)
            out |= _quantile_columns(name, quantiles(values, _QS), len(values))
        gaps = self.gaps
        return out | _quantile_columns("icl", gaps.quantiles_s(_QS), gaps.num_gaps - gaps.num_bundled)


def _present(values: Floats) -> Floats:
    return values[~np.isnan(values)]


def meets_all(rows: pa.Table, slos: Sequence[Slo]) -> Bools:
    """
    Tell for each row whether it is answered and meets every SLO; a latency that is null meets none.

    Args:
        rows: Columns LATENCY_COLUMNS, and chunk_us where an SLO is on icl (held against the request's mean gap).
        slos: At least one.
    """
    latencies = request_latencies(rows)
    good = is_word(rows, "outcome", "ok")
    for slo in slos:
        values: Floats = (
            mean_gap_s(rows["chunk_us"]) if slo.metric == "icl" else getattr(latencies, slo.metric)
        )
        good &= values <= slo.limit_s  # NaN compares false
    return good


def _sent_inside(rows: pa.Table, window: Window) -> Bools:
    sent = numbers(rows, "sent_ns")
    inside: Bools = measured(rows) & (sent >= window.start_ns) & (sent <= window.end_ns)
    return inside


def _window_columns(
    window: Window,
    rows: pa.Table,
    streams: _Streams,
    load: InFlight,
    turns: Turnarounds | None,
) -> LevelRow:
    chosen = _sent_inside(rows, window) & is_word(rows, "outcome", "ok")
    sums, told = streams.sums, _tokens_told(rows)
    total = sums.output_tokens + sums.prompt_tokens
    out: LevelRow = {
        "window_start_ns": window.start_ns,
        "window_end_ns": window.end_ns,
        "window_s": window.seconds,
        "request_rate": per_second(sums.requests, window.seconds),
        "output_token_rate": per_second(sums.output_tokens, window.seconds) if told["output"] else None,
        "total_token_rate": per_second(total, window.seconds) if all(told.values()) else None,
        "user_message_rate": per_second(sums.user_messages, window.seconds),
        "in_flight_mean": load.mean,
        "prompt_tokens_mean": mean(numbers(rows, "prompt_tokens")[chosen]),
        "completion_tokens_mean": mean(numbers(rows, "completion_tokens")[chosen]),
        "cached_tokens_ratio": _cached_ratio(rows, chosen),
        "client_lag_p99_s": _p99(numbers(rows, "client_lag_us")[chosen] / 1e6),
    }
    if turns is not None:
        out |= {"turnaround_ratio": turns.ratio, "turnaround_p99_s": _p99(turns.seconds)}
    return out | streams.columns(window)


def _quantile_columns(name: str, values: Sequence[float | None], n: int) -> LevelRow:
    return {f"{name}_{q}_s": v for q, v in zip(QUANTILES, values, strict=True)} | {f"{name}_n": n}


def _p99(values: Floats) -> float | None:
    return quantiles(values, [0.99])[0]


def _tokens_told(rows: pa.Table) -> dict[str, bool]:
    """Tell whether token rates mean anything: an answer that bears tokens says how many, or there was no answer."""
    ok = measured(rows) & is_word(rows, "outcome", "ok")
    return {
        kind: not ok.any() or bool((~np.isnan(numbers(rows, name)[ok])).any())
        for kind, name in (("output", "completion_tokens"), ("prompt", "prompt_tokens"))
    }


def _cached_ratio(rows: pa.Table, chosen: Bools) -> float | None:
    cached, prompt = numbers(rows, "cached_tokens")[chosen], numbers(rows, "prompt_tokens")[chosen]
    both = ~np.isnan(cached) & ~np.isnan(prompt)
    asked = float(prompt[both].sum())
    return some(float(cached[both].sum()) / asked) if asked > 0 else None


def _whole_columns(window: Window, sums: WholeSums) -> LevelRow:
    seconds = window.whole_s
    total = None
    if sums.output_tokens is not None and sums.prompt_tokens is not None:
        total = sums.output_tokens + sums.prompt_tokens
    nothing_answered = 0 if sums.requests == 0 else None
    return {
        "whole_s": seconds,
        "request_rate_whole": per_second(sums.requests, seconds),
        "output_token_rate_whole": per_second(_either(sums.output_tokens, nothing_answered), seconds),
        "total_token_rate_whole": per_second(_either(total, nothing_answered), seconds),
        "user_message_rate_whole": per_second(sums.user_messages, seconds),
    }


def _either(value: int | None, otherwise: int | None) -> int | None:
    return otherwise if value is None else value


def _invalid_reason(window: Window | None, accounting: Accounting) -> str | None:
    reasons = ["no request was sent"] if window is None else list(window.reasons)
    if accounting.problem is not None:
        reasons.append(accounting.problem)
    return "; ".join(reasons) or None
