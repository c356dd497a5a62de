"""
One level in the keys that `vllm bench serve` writes, so that dashboards made for it read a run (floor F4).

Same keys, same units (seconds in lists, milliseconds in the sums). Rates are over the whole level, as there, and not over the window.
What it knows and distbench does not keep (the texts) is empty; what was not measured is null and never zero.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distbench.analysis.arrays import numbers
from distbench.analysis.latency import LATENCY_COLUMNS
from distbench.analysis.outcome import run_outcome
from distbench.errors import PlanError
from distbench.store.reader import RunData
from distbench.units import NS_PER_S, ns_to_s

_COLUMNS = tuple(
    sorted(
        {"phase", "prompt_tokens", "error_text", "error_kind", "chunk_us", "chunk_tokens", *LATENCY_COLUMNS}
    )
)
_US_PER_S = 1e6
Floats = npt.NDArray[np.float64]


def vllm_json(run: RunData, level: int | None = None) -> dict[str, Any]:
    """
    Return one level of a run.

    Args:
        run: The run.
        level: Which; None: the first visit of the peak, or the fastest level where no peak was named.

    Raises:
        PlanError: there is no such level.
    """
    row = _choose(run, level)
    table = run.requests(int(row["level"]), _COLUMNS).filter(pc.field("phase") == "measured")
    table = table.sort_by("sent_ns")
    requests = _Requests(table, int(row["level"]))
    return {
        **_settings(run, row),
        **requests.totals(row),
        **requests.lists(),
        **requests.peaks(),
        **requests.sums(),
    }


def _choose(run: RunData, level: int | None) -> Mapping[str, Any]:
    outcome = run_outcome(run)
    rows = outcome.rows
    if not rows:
        raise PlanError([f"{run.uri} has no level"])
    if level is not None:
        for row in rows:
            if row["level"] == level:
                return row
        raise PlanError([f"--level {level}: {run.uri} has levels {', '.join(str(r['level']) for r in rows)}"])
    peak = (outcome.findings.get("peak") or {}).get("connections")
    at_peak = [row for row in rows if row["connections"] == peak]
    return max(at_peak or rows, key=lambda row: (-row["repeat"], row["output_token_rate"] or 0.0))


def _settings(run: RunData, row: Mapping[str, Any]) -> dict[str, Any]:
    plan = run.plan()
    target = run.info.extra.get("target")
    model = (target.get("model") if isinstance(target, Mapping) else None) or plan.get("model")
    kind = "openai-chat" if plan.get("endpoint", "chat") == "chat" else "openai"
    began = datetime.datetime.fromtimestamp(ns_to_s(run.info.epoch_wall_ns), datetime.UTC)
    return {
        "date": f"{began:%Y%m%d-%H%M%S}",
        "endpoint_type": kind,
        "backend": kind,
        "label": None,
        "model_id": model,
        "tokenizer_id": plan.get("tokenizer") or model,
        "num_prompts": row["requests_planned"],
        "request_rate": "inf" if row["offered_rate"] is None else row["offered_rate"],
        "burstiness": float(plan.get("burstiness", 1.0)),
        "max_concurrency": row["connections"],
    }


class _Requests:
    """The requests of one level as arrays, one entry each, in the order they were sent."""

    def __init__(self, table: pa.Table, level: int) -> None:
        self._table = table
        self.ok = np.asarray(pc.equal(table["outcome"], pa.scalar("ok")).to_numpy(), np.bool_)
        self.sent, first = numbers(table, "sent_ns") / NS_PER_S, numbers(table, "first_token_ns") / NS_PER_S
        last = numbers(table, "last_token_ns") / NS_PER_S
        end = numbers(table, "end_ns") / NS_PER_S
        self.finish = np.where(np.isnan(last), end, last)
        self.ttft = np.where(self.ok, first - self.sent, np.nan)
        self.latency = np.where(self.ok, self.finish - self.sent, np.nan)
        self.output = np.where(self.ok, numbers(table, "completion_tokens"), 0.0)
        self.input = numbers(table, "prompt_tokens")
        with np.errstate(invalid="ignore", divide="ignore"):
            self.tpot = np.where(self.output > 1, (self.latency - self.ttft) / (self.output - 1), np.nan)
        self.chunks: list[list[int]] = [us or [] for us in table["chunk_us"].to_pylist()]
        self.itls = [
            [round(float(gap), 9) for gap in np.diff(np.asarray(us)) / _US_PER_S]
            if ok and len(us) > 1
            else []
            for us, ok in zip(self.chunks, self.ok, strict=True)
        ]

    def totals(self, row: Mapping[str, Any]) -> dict[str, Any]:
        duration_s, completed = row["whole_s"], int(self.ok.sum())
        tokens_in = int(np.nansum(self.input[self.ok]))
        tokens_out = int(np.nansum(self.output))

        def rate(amount: float) -> float | None:
            return amount / duration_s if duration_s else None

        return {
            "duration": duration_s,
            "completed": completed,
            "failed": len(self.ok) - completed,
            "total_input_tokens": tokens_in,
            "total_output_tokens": tokens_out,
            "request_throughput": rate(completed),
            "request_goodput": row["goodput_rate"],
            "output_throughput": rate(tokens_out),
            "total_token_throughput": rate(tokens_in + tokens_out),
        }

    def lists(self) -> dict[str, Any]:
        waited = self.sent - numbers(self._table, "scheduled_ns") / NS_PER_S
        texts = zip(self._table["error_text"].to_pylist(), self._table["error_kind"].to_pylist(), strict=True)
        return {
            "input_lens": _whole(self.input),
            "output_lens": _whole(self.output),
            "ttfts": _zeros(self.ttft),
            "itls": self.itls,
            "latencies": _zeros(self.latency),
            "start_times": _zeros(self.sent),
            "queue_times": _zeros(waited),
            "generated_texts": [""] * len(self.ok),
            "errors": [text or kind or "" for text, kind in texts],
        }

    def peaks(self) -> dict[str, Any]:
        """Return the busiest second by tokens, and the second that the most requests touched, as vLLM counts them."""
        known = self.ok & np.isfinite(self.sent) & np.isfinite(self.finish)
        if not known.any():
            return {"max_output_tokens_per_s": None, "max_concurrent_requests": 0, "rtfx": 0.0}
        origin = float(self.sent[known].min())
        seconds = int(self.finish[known].max() - origin) + 1
        tokens, active = np.zeros(seconds + 1), np.zeros(seconds + 2)
        begin = np.floor(self.sent[known] - origin).astype(np.int64)
        finish = np.floor(self.finish[known] - origin).astype(np.int64)
        np.add.at(active, begin, 1)
        np.add.at(active, finish + 1, -1)
        for at in np.flatnonzero(known):
            times = self.sent[at] - origin + np.asarray(self.chunks[at], np.float64) / _US_PER_S
            # Tokens of each chunk are rarely told: each gets an even share of the answer's.
            share = self.output[at] / max(1, len(times))
            np.add.at(tokens, np.clip(times.astype(np.int64), 0, seconds), share)
        return {
            "max_output_tokens_per_s": float(tokens.max()),
            "max_concurrent_requests": int(np.cumsum(active).max()),
            "rtfx": 0.0,
        }

    def sums(self) -> dict[str, Any]:
        pooled = np.asarray([gap for gaps in self.itls for gap in gaps], np.float64)
        found: dict[str, Any] = {}
        for name, values in (("ttft", self.ttft), ("tpot", self.tpot), ("itl", pooled)):
            known = values[np.isfinite(values)] * 1000.0
            there = len(known) > 0
            found[f"mean_{name}_ms"] = float(np.mean(known)) if there else None
            found[f"median_{name}_ms"] = float(np.median(known)) if there else None
            found[f"std_{name}_ms"] = float(np.std(known)) if there else None
            found[f"p99_{name}_ms"] = float(np.percentile(known, 99)) if there else None
        return found


def _whole(values: Floats) -> list[int]:
    return [int(v) if np.isfinite(v) else 0 for v in values]


def _zeros(values: Floats) -> list[float]:
    """Return a list as vLLM writes it: 0.0 for a request that failed; its error says so."""
    return [float(v) if np.isfinite(v) else 0.0 for v in values]
