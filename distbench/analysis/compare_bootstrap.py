"""
How far a figure of one level may be off by chance, from inside the level (floor F3, pure).

A circular moving-block bootstrap over time: the window is cut into bins, blocks of neighbouring bins are drawn with replacement, and the
figure is taken anew from each draw. Blocks are at least as long as a request, because what happens within one hangs together.
Source: Politis and Romano, A Circular Block-Resampling Procedure for Stationary Data (1992); block length of order n^(1/3).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from distbench.analysis.arrays import is_word, numbers
from distbench.analysis.latency import LATENCY_COLUMNS, request_latencies
from distbench.analysis.summary import meets_all
from distbench.core.plan import Slo
from distbench.units import NS_PER_S

BOOTSTRAP_COLUMNS = tuple(sorted({"phase", "prompt_tokens", "user_messages", *LATENCY_COLUMNS}))
DRAWS = 1000
_BINS = 128
_MIN_BLOCKS = 4
_MAX_GROUPS = 2048
_QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
# Latencies that are taken per request; inter-chunk gaps would need every chunk time.
_LATENCIES = ("ttft", "ttfo", "tpot", "e2e", "response")
Floats = npt.NDArray[np.float64]


def level_deviations(
    rows: pa.Table, window_ns: tuple[int | None, int | None], seed: int, slos: Sequence[Slo] = ()
) -> Mapping[str, Floats]:
    """
    Draw by how much the figures of a level may be off.

    Args:
        rows: Requests of one level with BOOTSTRAP_COLUMNS; warm-up rows are left aside.
        window_ns: The level's window.
        seed: Any int >= 0; equal seeds give equal draws.
        slos: Bounds of the goodput; it is left out without any, and where one needs the times of the chunks.

    Returns:
        Column of levels.parquet -> log(figure of a draw / figure of the level), shape (DRAWS,). A figure that does not exist, and all of
        them where the window is shorter than four blocks, are left out.
    """
    start_ns, end_ns = window_ns
    if start_ns is None or end_ns is None or end_ns <= start_ns:
        return {}
    rows = rows.filter(pa.array(is_word(rows, "phase", "measured") & is_word(rows, "outcome", "ok")))
    found = request_latencies(rows)
    sent = numbers(rows, "sent_ns")
    inside = (sent >= start_ns) & (sent < end_ns)
    if not inside.any():
        return {}
    edges = np.linspace(start_ns, end_ns, _BINS + 1)
    longest_ns = float(np.nanmedian(found.e2e[inside])) * NS_PER_S
    weights, blocks = _block_weights(
        longest_ns / (edges[1] - edges[0]), np.random.default_rng([seed, 0xB10C])
    )
    if blocks < _MIN_BLOCKS:
        return {}
    # A mean of m blocks scatters by sqrt(m/(m-1)) more than its bootstrap says.
    widen = math.sqrt(blocks / (blocks - 1))
    out: dict[str, Floats] = {}
    for name, bins in _per_bin(rows, edges, slos).items():
        if bins.sum() > 0:
            out[name] = widen * np.log((bins @ weights) / bins.sum())
    position = np.clip(np.searchsorted(edges, sent[inside], side="right") - 1, 0, _BINS - 1)
    for name in _LATENCIES:
        values = getattr(found, name)[inside]
        known = np.isfinite(values) & (values > 0)
        if known.any():
            draws = _quantile_draws(values[known], position[known], weights)
            out |= {f"{name}_{q}_s": widen * d for q, d in draws.items()}
    return {name: d for name, d in out.items() if np.isfinite(d).all()}


def _block_weights(bins_per_request: float, rng: np.random.Generator) -> tuple[Floats, float]:
    """Return how often each draw takes each bin, shape (bins, draws), and how many blocks the window holds."""
    length = max(math.ceil(_BINS ** (1 / 3)), math.ceil(bins_per_request))
    number = -(-_BINS // length)
    starts = rng.integers(0, _BINS, (number, DRAWS))
    weights = np.zeros((_BINS, DRAWS))
    columns = np.broadcast_to(np.arange(DRAWS), starts.shape)
    for offset in range(min(length, _BINS)):
        np.add.at(weights, ((starts + offset) % _BINS, columns), 1.0)
    return weights * (_BINS / weights.sum(axis=0)), _BINS / length


def _amounts(rows: pa.Table, slos: Sequence[Slo]) -> dict[str, Floats]:
    output, prompt = numbers(rows, "completion_tokens"), numbers(rows, "prompt_tokens")
    good = {}
    if slos and all(slo.metric in _LATENCIES for slo in slos):
        good = {"goodput_rate": meets_all(rows, slos).astype(np.float64)}
    return good | {
        "request_rate": np.ones(len(output)),
        "output_token_rate": output,
        "total_token_rate": output + prompt,
        "user_message_rate": numbers(rows, "user_messages"),
    }


def _per_bin(rows: pa.Table, edges: Floats, slos: Sequence[Slo]) -> dict[str, Floats]:
    """Spread what each request is worth evenly over the time of its tokens; by column, shape (bins,)."""
    sent, first = numbers(rows, "sent_ns"), numbers(rows, "first_token_ns")
    last, end = numbers(rows, "last_token_ns"), numbers(rows, "end_ns")
    begin = np.where(np.isnan(first), sent, first)
    span = np.maximum(np.where(np.isnan(last), end, last) - begin, 1.0)
    amounts = _amounts(rows, slos)
    worth = np.nan_to_num(np.stack(list(amounts.values()), axis=1))
    done = np.stack([np.nan_to_num(np.clip((edge - begin) / span, 0.0, 1.0)) @ worth for edge in edges])
    return dict(zip(amounts, np.diff(done, axis=0).T, strict=True))


def _quantile_draws(values: Floats, position: npt.NDArray[np.int64], weights: Floats) -> dict[str, Floats]:
    """Return log(quantile of a draw / quantile of all) by quantile; a draw weighs each value as it weighs its bin."""
    order = np.argsort(values, kind="stable")
    ordered, where = values[order], position[order]
    last = _group_ends(len(ordered))
    group = np.searchsorted(last, np.arange(len(ordered)), side="left")
    counts = np.zeros((len(last), _BINS))
    np.add.at(counts, (group, where), 1.0)
    reached = np.cumsum(counts @ weights, axis=0)
    plain = np.cumsum(counts.sum(axis=1))
    tops = ordered[last]

    def at(cumulated: Floats, q: float) -> npt.NDArray[np.int64]:
        below = (cumulated < q * cumulated[-1]).sum(axis=0)
        index: npt.NDArray[np.int64] = np.minimum(below, len(tops) - 1).astype(np.int64)
        return index

    return {name: np.log(tops[at(reached, q)] / tops[int(at(plain, q))]) for name, q in _QUANTILES.items()}


def _group_ends(count: int) -> npt.NDArray[np.int64]:
    """Return the last rank of each group of neighbouring values: every rank where they are few, else dense in the upper tail."""
    if count <= _MAX_GROUPS:
        return np.arange(count)
    even = np.linspace(0, count - 1, _MAX_GROUPS // 2)
    tail = count - np.geomspace(1, count, _MAX_GROUPS // 2)
    return np.unique(np.concatenate([even, tail, [count - 1]]).astype(np.int64))
