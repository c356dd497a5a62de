"""
Whether a level's throughput stood still while it was measured (floor F3, pure).

The window is cut into twelve blocks; the three thirds are four blocks each. A third that differs from another by more than 10 %, and by
more than the scatter of the blocks explains, makes the level unstable: a cold server, a drifting one, or a queue that still fills.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from scipy import special

from distbench.units import NS_PER_S, NS_PER_US

BLOCKS = 12
DRIFT_RATIO = 0.10
# Blocks follow each other; more than this cannot be told from so few.
_MAX_CORRELATION = 0.8
# Three pairs of thirds are compared: each at a third of 5 %.
_PAIR_SIGNIFICANCE = 0.05 / 3

Floats = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Stability:
    """
    How steady a window was.

    Attributes:
        stable: None where it cannot be judged (no tokens).
        third_rates: Tokens/s of the three thirds.
        drift_ratio: Largest difference between two thirds over the mean.
        rate_error: Standard error of the window's tokens/s, from the scatter of the blocks; None: not known.
        text: One sentence with the numbers.
    """

    stable: bool | None
    third_rates: tuple[float, float, float] | None
    drift_ratio: float | None
    rate_error: float | None
    text: str


def block_rates(requests: pa.Table, window_ns: tuple[int, int], blocks: int = BLOCKS) -> Floats:
    """
    Count output tokens per second in equal blocks of the window.

    Args:
        requests: Rows of one level, at least sent_ns, end_ns, chunk_us, completion_tokens.
        window_ns: Start and end, ns since the epoch.
        blocks: How many.

    Returns:
        Shape (blocks,). The tokens of a streamed request lie at its chunks' times, in equal parts; those of an answer that came at
        once are spread over its whole duration.
    """
    edges = np.linspace(window_ns[0], window_ns[1], blocks + 1)
    if window_ns[1] <= window_ns[0]:
        return np.zeros(blocks)
    rows = requests.select(["sent_ns", "end_ns", "chunk_us", "completion_tokens"])
    rows = rows.filter(pc.is_valid(rows["sent_ns"])).combine_chunks()
    sent = rows["sent_ns"].to_numpy().astype(np.float64)
    lengths = pc.fill_null(pc.list_value_length(rows["chunk_us"]), 0).to_numpy().astype(np.int64)
    tokens = _floats(rows["completion_tokens"])
    tokens = np.where(np.isnan(tokens), lengths, tokens)
    parents = np.repeat(np.arange(len(sent)), lengths)
    offsets = pc.list_flatten(rows["chunk_us"]).to_numpy().astype(np.float64) * NS_PER_US
    weights = (tokens / np.maximum(lengths, 1))[parents]
    counts, _ = np.histogram(sent[parents] + offsets, bins=edges, weights=weights)
    end = _floats(rows["end_ns"])
    at_once = (lengths == 0) & (tokens > 0) & (end > sent)
    for index in range(blocks):
        overlap = np.minimum(end, edges[index + 1]) - np.maximum(sent, edges[index])
        share = np.maximum(overlap, 0)[at_once] / (end - sent)[at_once]
        counts[index] += float((share * tokens[at_once]).sum())
    rates: Floats = counts / ((window_ns[1] - window_ns[0]) / blocks / NS_PER_S)
    return rates


def _floats(column: pa.ChunkedArray[Any]) -> Floats:
    values: Floats = pc.cast(column, pa.float64()).to_numpy()
    return values


def judge_stability(rates: Floats) -> Stability:
    """
    Judge block rates in order of time.

    Args:
        rates: Shape (blocks,), blocks a multiple of 3, at least 6; tokens/s.
    """
    mean = float(rates.mean()) if rates.size else 0.0
    if mean <= 0:
        return Stability(
            stable=None, third_rates=None, drift_ratio=None, rate_error=None, text="no tokens in the window"
        )
    thirds = rates.reshape(3, -1)
    means = thirds.mean(axis=1)
    drift = float(means.max() - means.min()) / mean
    per_third = thirds.shape[1]
    variance = float(thirds.var(axis=1, ddof=1).mean())
    error = math.sqrt(2 * variance / per_third)
    bound = float(special.stdtrit(3 * (per_third - 1), 1 - _PAIR_SIGNIFICANCE / 2)) * error
    unstable = any(
        abs(a - b) > max(DRIFT_RATIO * mean, bound) for a, b in itertools.combinations(means.tolist(), 2)
    )
    shown = ", ".join(f"{value:.4g}" for value in means)
    return Stability(
        stable=not unstable,
        third_rates=(float(means[0]), float(means[1]), float(means[2])),
        drift_ratio=drift,
        rate_error=_rate_error(rates),
        text=f"thirds of the window: {shown} tokens/s, differing by {drift:.1%}",
    )


def _rate_error(rates: Floats) -> float:
    """Return the standard error of the mean of blocks that may be correlated with their neighbours."""
    centred = rates - rates.mean()
    variance = float((centred**2).sum())
    if variance == 0:
        return 0.0
    correlation = min(max(float((centred[1:] * centred[:-1]).sum()) / variance, 0.0), _MAX_CORRELATION)
    plain = math.sqrt(variance / (rates.size - 1) / rates.size)
    return plain * math.sqrt((1 + correlation) / (1 - correlation))


def stability(requests: pa.Table, window_ns: tuple[int, int]) -> Stability:
    """Return the stability of a level's window from its request rows."""
    return judge_stability(block_rates(requests, window_ns))
