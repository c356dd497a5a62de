"""
The latencies of requests (floor F3, pure); docs/metrics.md has the formulas.

Failed, cut and lost requests have none. What did not happen is NaN here and null in the files, never zero. A negative interval would
be a fault of ours, not data: it is left out and counted.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from distbench.analysis.arrays import Bools, Floats, flat_lists, is_word, numbers, sums_of_rows
from distbench.analysis.quantiles import WholeCounts
from distbench.units import NS_PER_S

# Read these and no others: rows may be many.
LATENCY_COLUMNS = (
    "outcome",
    "scheduled_ns",
    "first_sent_ns",
    "sent_ns",
    "first_token_ns",
    "first_answer_ns",
    "last_token_ns",
    "end_ns",
    "completion_tokens",
)
_US_PER_S = 1e6


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """
    Seconds per request, each of shape (rows,), NaN where there is none.

    Attributes:
        ttft: First token of any kind - sent.
        ttfo: First answer token - sent.
        tpot: (last token - first token) / (completion tokens - 1); none below two tokens, and none where all came in one read, since
            then no time between them was seen.
        e2e: Last token - sent; of an answer that was not streamed: last byte - sent.
        response: Last token (or last byte) - scheduled; none in closed loop.
        send_lag: First sent - scheduled; none in closed loop.
        num_negative: Intervals below zero that were left out.
    """

    ttft: Floats
    ttfo: Floats
    tpot: Floats
    e2e: Floats
    response: Floats
    send_lag: Floats
    num_negative: int


def request_latencies(rows: pa.Table) -> Latencies:
    """Return the latencies of rows, columns LATENCY_COLUMNS; only those with outcome ok have any."""
    ok = is_word(rows, "outcome", "ok")
    scheduled, sent = numbers(rows, "scheduled_ns"), numbers(rows, "sent_ns")
    first, last = numbers(rows, "first_token_ns"), numbers(rows, "last_token_ns")
    end = np.where(np.isnan(last), numbers(rows, "end_ns"), last)
    num_tokens = numbers(rows, "completion_tokens")
    decode = last - first
    with np.errstate(invalid="ignore", divide="ignore"):
        tpot = np.where((num_tokens >= 2) & (decode != 0), decode / (num_tokens - 1), np.nan)
    intervals = {
        "ttft": first - sent,
        "ttfo": numbers(rows, "first_answer_ns") - sent,
        "tpot": tpot,
        "e2e": end - sent,
        "response": end - scheduled,
    }
    num_negative = 0
    seconds: dict[str, Floats] = {}
    for name, nanoseconds in intervals.items():
        kept = np.where(ok, nanoseconds, np.nan) / NS_PER_S
        negative = kept < 0
        num_negative += int(negative.sum())
        seconds[name] = np.where(negative, np.nan, kept)
    send_lag = (numbers(rows, "first_sent_ns") - scheduled) / NS_PER_S
    return Latencies(**seconds, send_lag=send_lag, num_negative=num_negative)


@dataclasses.dataclass(slots=True)
class Gaps:
    """
    Gaps between the chunks of streams, pooled over any number of tables.

    A chunk that came in one read with the chunk before it (equal time) is bundled: that gap is an artefact of reading and is left out.

    Attributes:
        counts: µs of the gaps that are not bundled.
        num_gaps: All gaps, which is chunks after the first of their stream.
        num_bundled: Those of them that are bundled.
    """

    counts: WholeCounts = dataclasses.field(default_factory=WholeCounts)
    num_gaps: int = 0
    num_bundled: int = 0

    @property
    def bundled_ratio(self) -> float | None:
        """Return bundled gaps / all gaps; None without a gap."""
        return self.num_bundled / self.num_gaps if self.num_gaps else None

    def add(self, chunk_us: pa.ChunkedArray[Any]) -> None:
        """Add the gaps of streams, a list of chunk times each; the time from the request to its first chunk is no gap."""
        gaps = chunk_gaps_us(chunk_us)
        apart = gaps[gaps > 0]
        self.num_gaps += len(gaps)
        self.num_bundled += len(gaps) - len(apart)
        self.counts.add(apart)

    def quantiles_s(self, qs: list[float]) -> list[float | None]:
        """Return quantiles of the gaps that are not bundled, in seconds."""
        return [None if v is None else v / _US_PER_S for v in self.counts.quantiles(qs)]


def chunk_gaps_us(chunk_us: pa.ChunkedArray[Any]) -> npt.NDArray[np.int32]:
    """
    Return all gaps between neighbouring chunks of the same stream, µs, bundled ones as 0, in order.

    A gap wraps at 2**31 µs (36 minutes), which no idle timeout lets live. One below zero comes from the jitter of two clock readings.
    """
    flat, offsets = flat_lists(chunk_us)
    if len(flat) < 2:
        return np.empty(0, np.int32)
    values = flat.view(np.int32)
    gaps: npt.NDArray[np.int32] = values[1:] - values[:-1]
    # A gap that ends at the first chunk of a stream lies between two streams.
    inside = np.ones(len(gaps), np.bool_)
    firsts = offsets[1:-1]
    inside[firsts[(firsts > 0) & (firsts < len(flat))] - 1] = False
    return np.maximum(gaps[inside], 0)


def mean_gap_s(chunk_us: pa.ChunkedArray[Any]) -> Floats:
    """
    Return each stream's mean inter-chunk gap without the bundled ones; shape (rows,), NaN where it has none.

    This is the inter-chunk latency of one request, which an SLO on icl is held against.
    """
    flat, offsets = flat_lists(chunk_us)
    out = np.full(len(offsets) - 1, np.nan)
    if not len(flat):
        return out
    values = flat.astype(np.int64)
    new_read = np.ones(len(values), np.bool_)
    new_read[1:] = values[1:] > values[:-1]
    filled = offsets[:-1] < offsets[1:]
    new_read[offsets[:-1][filled]] = False  # the first chunk of a stream ends no gap of it
    num_gaps = sums_of_rows(new_read, offsets)
    usable: Bools = filled & (num_gaps > 0)
    span = values[offsets[1:][usable] - 1] - values[offsets[:-1][usable]]
    out[usable] = span / num_gaps[usable] / _US_PER_S
    return out
