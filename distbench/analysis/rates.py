"""
What was produced inside a window (floor F3, pure): tokens, requests and user messages by the tokens' own times.

A request counts by the share of its output tokens that lies inside the window, so that answers that end together (lockstep batches)
are neither all in nor all out. docs/metrics.md has the formulas.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distbench.analysis.arrays import (
    Bools,
    Floats,
    Ints,
    flat_lists,
    is_word,
    measured,
    numbers,
    rows_where,
    sums_of_rows,
)
from distbench.analysis.windows import Window

RATE_COLUMNS = (
    "phase",
    "outcome",
    "sent_ns",
    "first_token_ns",
    "last_token_ns",
    "end_ns",
    "finish_reason",
    "prompt_tokens",
    "completion_tokens",
    "max_tokens",
    "user_messages",
    "chunk_us",
    "chunk_tokens",
)
_WHOLE_COLUMNS = ("finish_reason", "prompt_tokens", "completion_tokens", "max_tokens", "user_messages")
NUM_SLICES = 30
_NS_PER_US = 1_000.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """
    What a request that was cut would have been, from the requests of its level that were not.

    Attributes:
        completion_mean: Mean output tokens; NaN without an answer.
        answered_ratio: Output tokens / max_tokens; NaN where either is unknown.
        prompt_mean: Mean prompt tokens; NaN where unknown.
    """

    completion_mean: float
    answered_ratio: float
    prompt_mean: float


def expected_of(rows: pa.Table) -> Expected:
    """Return what the answered requests of a level were like; columns phase, outcome and the token counts."""
    ok = measured(rows) & is_word(rows, "outcome", "ok")
    completion, limit = numbers(rows, "completion_tokens")[ok], numbers(rows, "max_tokens")[ok]
    both = ~np.isnan(completion) & ~np.isnan(limit)
    asked = float(limit[both].sum())
    return Expected(
        completion_mean=_mean(completion),
        answered_ratio=float(completion[both].sum()) / asked if asked > 0 else np.nan,
        prompt_mean=_mean(numbers(rows, "prompt_tokens")[ok]),
    )


def _mean(values: Floats) -> float:
    present = values[~np.isnan(values)]
    return float(present.mean()) if present.size else np.nan


def answered_share(rows: pa.Table) -> Floats:
    """
    Return how much of what was asked an answer holds, 0..1; shape (rows,).

    1 but where the server clamped the answer: finish_reason length with fewer tokens than max_tokens.
    """
    completion, limit = numbers(rows, "completion_tokens"), numbers(rows, "max_tokens")
    clamped = is_word(rows, "finish_reason", "length") & (completion < limit)
    return np.where(clamped, completion / np.where(limit > 0, limit, 1.0), 1.0)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """
    What of each row lies in the window; each of shape (rows,), 0 where nothing does.

    Attributes:
        requests: Share of the request, 0..1; of one that was cut, against the length it would have had.
        output_tokens, prompt_tokens: Tokens; unknown ones count as none.
        user_messages: Messages, clamped answers by their answered share.
    """

    requests: Floats
    output_tokens: Floats
    prompt_tokens: Floats
    user_messages: Floats


class WindowSums:
    """Sums over a window, of any number of tables."""

    def __init__(self, window: Window, expected: Expected) -> None:
        self._window = window
        self._expected = expected
        self.requests = 0.0
        self.output_tokens = 0.0
        self.prompt_tokens = 0.0
        self.user_messages = 0.0
        self.slices = np.zeros(NUM_SLICES)

    def add(self, rows: pa.Table) -> Inside:
        """Add rows, columns RATE_COLUMNS, and return what of each lies inside."""
        streams = _Streams(rows, self._expected, self._window.start_ns, self._window.end_ns)
        inside = streams.inside_of_window()
        self.requests += float(inside.requests.sum())
        self.output_tokens += float(inside.output_tokens.sum())
        self.prompt_tokens += float(inside.prompt_tokens.sum())
        self.user_messages += float(inside.user_messages.sum())
        self.slices += streams.tokens_by_slice()
        return inside

    def slice_rates(self) -> list[float]:
        """Return output tokens per second in NUM_SLICES equal slices of the window, in order; their mean is the rate of the whole."""
        return [float(v) for v in self.slices * NUM_SLICES / self._window.seconds]


class _Streams:
    """Rows with the times of their tokens, held against a window."""

    def __init__(self, rows: pa.Table, expected: Expected, start_ns: int, end_ns: int) -> None:
        self.start, self.end = start_ns, end_ns
        is_measured = measured(rows)
        self.ok = is_measured & is_word(rows, "outcome", "ok")
        self.cut = is_measured & is_word(rows, "outcome", "cut")
        self.sent, self.ended = numbers(rows, "sent_ns"), numbers(rows, "end_ns")
        self.counts = (self.ok | self.cut) & ~np.isnan(self.sent) & ~np.isnan(self.ended)
        self._take_chunks(rows)
        completion = numbers(rows, "completion_tokens")
        # A request that was cut never came to its usage: what was seen of it is what there is.
        self.tokens: Floats = np.where(
            np.isnan(completion) & self.has_chunks, self.weight_sums, np.nan_to_num(completion)
        )
        self.even = np.flatnonzero(self.ok & self.counts & ~self.has_chunks)
        self.prompt = numbers(rows, "prompt_tokens").copy()
        self.prompt[self.cut & np.isnan(self.prompt)] = expected.prompt_mean
        self.first = numbers(rows, "first_token_ns")
        self.full = self._full_lengths(numbers(rows, "max_tokens"), expected)
        self.messages = numbers(rows, "user_messages") * answered_share(rows)

    def _take_chunks(self, rows: pa.Table) -> None:
        """Sort the chunks into the slices of the window: 0 is before it (or at its start), NUM_SLICES + 1 and more after it."""
        flat_us, self.offsets = flat_lists(rows["chunk_us"])
        self.lengths = np.diff(self.offsets)
        place = flat_us * (_NS_PER_US / (self.end - self.start) * NUM_SLICES)
        begin = (np.nan_to_num(self.sent) - self.start) / (self.end - self.start) * NUM_SLICES
        place += np.repeat(begin, self.lengths)
        self.slice_of = np.ceil(place, out=place)
        self.inside: Bools = (self.slice_of > 0) & (self.slice_of <= NUM_SLICES)
        self.weights = _weights(rows["chunk_tokens"], self.offsets)
        if self.weights is None:
            self.weight_sums = self.lengths.astype(np.float64)
        else:
            self.weight_sums = sums_of_rows(self.weights, self.offsets)
        self.has_chunks: Bools = self.weight_sums > 0

    def _full_lengths(self, limit: Floats, expected: Expected) -> Floats:
        would_be = np.where(np.isnan(limit), expected.completion_mean, limit * expected.answered_ratio)
        would_be = np.where(np.isnan(would_be), limit, would_be)
        return np.where(self.cut, np.fmax(self.tokens, would_be), self.tokens)

    def inside_of_window(self) -> Inside:
        share = self._token_share()
        output = share * self.tokens
        requests = share.copy()
        cut = self.cut & (self.full > 0)
        requests[cut] = output[cut] / self.full[cut]
        came_first = np.where(self.has_chunks, (self.first > self.start) & (self.first <= self.end), share)
        return Inside(
            requests=requests,
            output_tokens=output,
            prompt_tokens=np.nan_to_num(self.prompt) * np.where(self.counts, came_first, 0.0),
            user_messages=requests * self.messages,
        )

    def _token_share(self) -> Floats:
        """Return the share of each row's tokens inside, 0 for rows that do not count."""
        weighed = sums_of_rows(
            self.inside if self.weights is None else self.weights * self.inside, self.offsets
        )
        share = np.divide(weighed, self.weight_sums, out=np.zeros_like(weighed), where=self.has_chunks)
        # Without token times (an answer in one piece) they are taken as spread evenly from sent to end.
        sent, end = self.sent[self.even], self.ended[self.even]
        overlap = np.clip(np.minimum(end, self.end) - np.maximum(sent, self.start), 0, None)
        share[self.even] = overlap / np.maximum(end - sent, 1.0)
        share[~self.counts] = 0.0
        return share

    def tokens_by_slice(self) -> Floats:
        """Return output tokens in each slice of the window."""
        counted = self.has_chunks & self.counts
        each = np.divide(self.tokens, self.weight_sums, out=np.zeros_like(self.tokens), where=counted)
        tokens = np.repeat(each, self.lengths)[self.inside]
        if self.weights is not None:
            tokens *= self.weights[self.inside]
        place = self.slice_of[self.inside].astype(np.int64) - 1
        slices = np.bincount(place, tokens, NUM_SLICES).astype(np.float64)
        if len(self.even):
            sent, end = self.sent[self.even], self.ended[self.even]
            rate = self.tokens[self.even] / np.maximum(end - sent, 1.0)
            edges = np.linspace(self.start, self.end, NUM_SLICES + 1)
            for at in range(NUM_SLICES):
                overlap = np.minimum(end, edges[at + 1]) - np.maximum(sent, edges[at])
                slices[at] += float((np.clip(overlap, 0, None) * rate).sum())
        return slices


def _weights(chunk_tokens: pa.ChunkedArray[Any], offsets: Ints) -> Floats | None:
    """Return the tokens of each chunk, 1 where its row does not tell them for all its chunks; None where no row does."""
    if chunk_tokens.null_count == len(chunk_tokens):
        return None
    lengths = np.diff(offsets)
    weights = np.ones(int(offsets[-1]))
    flat, token_offsets = flat_lists(chunk_tokens)
    told = (np.diff(token_offsets) == lengths) & (sums_of_rows(flat.astype(np.float64), token_offsets) > 0)
    weights[np.repeat(told, lengths)] = flat[np.repeat(told, np.diff(token_offsets))]
    return weights


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WholeSums:
    """Sums over a whole level of the requests that were answered; None where no answer tells its tokens."""

    requests: int
    output_tokens: int | None
    prompt_tokens: int | None
    user_messages: float


def whole_sums(rows: pa.Table) -> WholeSums:
    """Sum up the answered measured requests; columns RATE_COLUMNS but the chunks."""
    ok = rows_where(rows, measured(rows) & is_word(rows, "outcome", "ok"), _WHOLE_COLUMNS)
    return WholeSums(
        requests=ok.num_rows,
        output_tokens=_sum(ok, "completion_tokens"),
        prompt_tokens=_sum(ok, "prompt_tokens"),
        user_messages=float((numbers(ok, "user_messages") * answered_share(ok)).sum()),
    )


def _sum(rows: pa.Table, name: str) -> int | None:
    column: Any = rows[name]
    total: Any = pc.sum(column.cast(pa.int64()))
    value = total.as_py()
    return None if value is None else int(value)


def per_second(amount: float | None, seconds: float) -> float | None:
    """Return amount / seconds; None where the amount is not known or the time is nothing."""
    return None if amount is None or seconds <= 0 else amount / seconds
