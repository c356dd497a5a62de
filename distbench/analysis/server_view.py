"""
What the servers told of one level (floor F3, pure): gauges over its window, deltas from settled reading to settled reading.

Each engine and target is summed up first, then all of them together. A figure is None where a target does not export it, and
``missing`` says why; docs/verdicts.md explains what each is used for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from distbench.analysis.server_series import ServerSeries, TargetSeries, server_series
from distbench.analysis.server_sums import (
    Period,
    delta,
    gauge_grid,
    observed_mean,
    plateau_ratio,
    step_shares,
)
from distbench.telemetry.detect import Continuity, worst
from distbench.telemetry.gpu import GpuView, gpu_view
from distbench.telemetry.vocabulary import NO_OBSERVATIONS, NOT_EXPORTED, Quantity

MIN_SCRAPES = 5


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EngineView:
    """
    One engine of one target over the window. Fields as in ServerView; None: not exported per engine.

    Attributes:
        target: As in the rows.
        engine: Value of the engine label; "" where there is none.
    """

    target: str
    engine: str
    running_mean: float | None
    running_max: float | None
    running_plateau_ratio: float | None
    waiting_mean: float | None
    waiting_ratio: float | None
    kv_usage_mean: float | None
    kv_usage_max: float | None
    preemptions: float | None
    generation_tokens: float | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ServerView:
    """
    All servers over one level. None: not known, with the reason in ``missing``.

    Attributes:
        scrapes: Scrapes inside the window, of the target with the fewest.
        running_mean, running_max, waiting_mean, waiting_max: Requests, all engines together.
        running_plateau_ratio: Share of the scrapes at which running was at its highest, but for 5 % or one request.
        running_cap_ratio: Share of the scrapes at which running was exactly at its highest.
        waiting_ratio: Share of the scrapes with a request waiting anywhere.
        kv_usage_mean, kv_usage_max: 0..1; mean over the engines, and the fullest engine at its fullest.
        prefix_queries, prefix_hits, prefix_hit_ratio: Over the level, in the servers' unit (tokens, or blocks in old versions).
        preemptions, rejections, requests_finished: Over the level.
        prompt_tokens, prompt_tokens_cached, generation_tokens: Over the level, aborted requests included.
        finished_prompt_tokens, finished_generation_tokens: Over the level, of requests that finished.
        queue_time_mean_s, prefill_time_mean_s, decode_time_mean_s, ttft_mean_s, itl_mean_s, e2e_mean_s: Of what was observed
            inside the window, else over the level. itl_mean_s stands for the time of an engine step.
        step_tokens_mean: Tokens, prompt and output, per engine step.
        step_buckets: (tokens, share of the window's steps with so many or fewer), ascending; empty: not known.
        steps: Engine steps inside the window.
        imbalance: Output tokens of the busiest engine over the fair share; None with one engine.
        engines: Each engine.
        gpu: None without a DCGM exporter.
        continuity: steady, reset or mixed, the worst over the targets.
        models: Model names in the series.
        cache_config: Of the first target that tells.
        missing: Reason by name of the quantity.
        notes: What is odd, one sentence each.
    """

    scrapes: int
    running_mean: float | None = None
    running_max: float | None = None
    running_plateau_ratio: float | None = None
    running_cap_ratio: float | None = None
    waiting_mean: float | None = None
    waiting_max: float | None = None
    waiting_ratio: float | None = None
    kv_usage_mean: float | None = None
    kv_usage_max: float | None = None
    prefix_queries: float | None = None
    prefix_hits: float | None = None
    prefix_hit_ratio: float | None = None
    preemptions: float | None = None
    rejections: float | None = None
    requests_finished: float | None = None
    prompt_tokens: float | None = None
    prompt_tokens_cached: float | None = None
    generation_tokens: float | None = None
    finished_prompt_tokens: float | None = None
    finished_generation_tokens: float | None = None
    queue_time_mean_s: float | None = None
    prefill_time_mean_s: float | None = None
    decode_time_mean_s: float | None = None
    ttft_mean_s: float | None = None
    itl_mean_s: float | None = None
    e2e_mean_s: float | None = None
    step_tokens_mean: float | None = None
    step_buckets: tuple[tuple[float, float], ...] = ()
    steps: float | None = None
    imbalance: float | None = None
    engines: tuple[EngineView, ...] = ()
    gpu: GpuView | None = None
    continuity: Continuity = Continuity.STEADY
    models: tuple[str, ...] = ()
    cache_config: Mapping[str, str] = dataclasses.field(default_factory=dict)
    missing: Mapping[str, str] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def has_gauges(self) -> bool:
        """Whether running and waiting are known from enough scrapes to judge by."""
        return (
            self.scrapes >= MIN_SCRAPES and self.running_mean is not None and self.waiting_ratio is not None
        )

    def level_columns(self) -> dict[str, float | int | None]:
        """Return the columns of levels.parquet that come from the servers."""
        names = (
            "scrapes",
            "running_mean",
            "running_max",
            "waiting_mean",
            "waiting_ratio",
            "kv_usage_mean",
            "kv_usage_max",
            "prefix_hit_ratio",
            "preemptions",
            "queue_time_mean_s",
            "prefill_time_mean_s",
            "decode_time_mean_s",
        )
        gpu = self.gpu
        return {name: getattr(self, name) for name in names} | {
            "gpu_util_mean": gpu.util_mean if gpu else None,
            "sm_active_mean": gpu.sm_active_mean if gpu else None,
            "dram_active_mean": gpu.dram_active_mean if gpu else None,
            "tensor_active_mean": gpu.tensor_active_mean if gpu else None,
            "gpu_power_mean_w": gpu.power_mean_w if gpu else None,
        }


def server_view(
    rows: pa.Table,
    *,
    window_ns: tuple[int, int],
    settled_ns: tuple[int, int],
    targets: Sequence[str] = (),
    model: str | None = None,
    helps: Mapping[str, str] | None = None,
) -> ServerView:
    """
    Sum up the servers' rows of one level.

    Args:
        rows: Schema SERVER; at least from the settling before the level to the one after it. More does no harm.
        window_ns: Start and end of the window; gauges are taken inside.
        settled_ns: Settled.time_ns before and after the level; deltas go from the last reading at or before the first to the
            last at or before the second.
        targets: Names of the server targets that should have answered; one without a row makes all sums unknown.
        model: The model under load, where a server has several.
        helps: Scraper.helps.

    Returns:
        The view. Where the targets are mixed behind a balancer it holds no figure but the count of scrapes.
    """
    series = server_series(rows, model=model, helps=helps)
    period = Period(window_ns=window_ns, settled_ns=settled_ns)
    silent = sorted(set(targets) - {target.target for target in series.targets})
    gpu = gpu_view(
        (identity, name, value)
        for time_ns, identity, name, value in series.gpu_readings
        if window_ns[0] <= time_ns <= window_ns[1]
    )
    if not series.targets or silent:
        reason = f"no metrics from {', '.join(silent)}" if silent else "no metrics"
        return ServerView(scrapes=0, gpu=gpu, missing=dict.fromkeys(Quantity, reason), notes=(reason,))
    continuity = worst([target.continuity for target in _in_period(series, period)])
    scrapes = min(period.in_window(target.times_ns).sum() for target in series.targets)
    if continuity is Continuity.MIXED:
        note = (
            "several servers answer in turn behind one metrics URL: give each server's own with --metrics-url"
        )
        return ServerView(
            scrapes=int(scrapes),
            gpu=gpu,
            continuity=continuity,
            missing=dict.fromkeys(Quantity, "mixed targets"),
            notes=(note,),
        )
    return _Sums(series, period).view(int(scrapes), gpu, continuity, model)


def _in_period(series: ServerSeries, period: Period) -> list[TargetSeries]:
    """Judge continuity over this level alone: a restart before it is no concern of its deltas."""
    return [period.cut(target) for target in series.targets]


class _Sums:
    """One level's sums, with the reasons of what is missing."""

    def __init__(self, series: ServerSeries, period: Period) -> None:
        self.series = series
        self.period = period
        self.missing: dict[str, str] = {}

    def view(
        self, scrapes: int, gpu: GpuView | None, continuity: Continuity, model: str | None
    ) -> ServerView:
        queries, hits = self.count(Quantity.PREFIX_QUERIES), self.count(Quantity.PREFIX_HITS)
        engines = self._engines()
        models = tuple(sorted({name for target in self.series.targets for name in target.models}))
        gauges = self._gauges(engines)
        return ServerView(
            scrapes=scrapes,
            **gauges,
            prefix_queries=queries,
            prefix_hits=hits,
            prefix_hit_ratio=self._ratio("prefix_hit_ratio", hits, queries),
            preemptions=self.count(Quantity.PREEMPTIONS),
            rejections=self.count(Quantity.REJECTIONS),
            requests_finished=self.count(Quantity.REQUESTS_FINISHED),
            prompt_tokens=self.count(Quantity.PROMPT_TOKENS),
            prompt_tokens_cached=self.count(Quantity.PROMPT_TOKENS_CACHED),
            generation_tokens=self.count(Quantity.GENERATION_TOKENS),
            finished_prompt_tokens=self.observed_total(Quantity.FINISHED_PROMPT_TOKENS),
            finished_generation_tokens=self.observed_total(Quantity.FINISHED_GENERATION_TOKENS),
            queue_time_mean_s=self.mean(Quantity.QUEUE_TIME),
            prefill_time_mean_s=self.mean(Quantity.PREFILL_TIME),
            decode_time_mean_s=self.mean(Quantity.DECODE_TIME),
            ttft_mean_s=self.mean(Quantity.TTFT),
            itl_mean_s=self.mean(Quantity.ITL),
            e2e_mean_s=self.mean(Quantity.E2E),
            step_tokens_mean=self.mean(Quantity.STEP_TOKENS),
            step_buckets=step_shares(self._targets, self.period),
            steps=self.steps(),
            imbalance=_imbalance(engines),
            engines=engines,
            gpu=gpu,
            continuity=continuity,
            models=models,
            cache_config=next((t.cache_config for t in self.series.targets if t.cache_config), {}),
            missing=self.missing,
            notes=_notes(models, model, continuity),
        )

    def count(self, quantity: Quantity) -> float | None:
        """Return the level's delta of a counter over all targets."""
        return self._total(quantity, [delta(t, t.counters.get(quantity), self.period) for t in self._targets])

    def observed_total(self, quantity: Quantity) -> float | None:
        """Return the level's sum of what was observed."""
        return self._total(quantity, [delta(t, t.sums.get(quantity), self.period) for t in self._targets])

    def mean(self, quantity: Quantity) -> float | None:
        """Return the mean of what was observed in the window, or over the level where that is too short."""
        if any(quantity not in target.sums for target in self._targets):
            self.missing[quantity] = NOT_EXPORTED
            return None
        value = observed_mean(self._targets, quantity, self.period)
        if value is None:
            self.missing[quantity] = NO_OBSERVATIONS
        return value

    def steps(self) -> float | None:
        """Return the engine steps inside the window."""
        values = [
            delta(t, t.counts.get(Quantity.STEP_TOKENS), self.period, in_window=True) for t in self._targets
        ]
        return None if any(value is None for value in values) else sum(v for v in values if v is not None)

    @property
    def _targets(self) -> tuple[TargetSeries, ...]:
        return self.series.targets

    def _total(self, quantity: Quantity, values: Sequence[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        if len(known) < len(values):
            reset = any(target.continuity is Continuity.RESET for target in self._targets)
            self.missing[quantity] = "counter reset" if reset else NOT_EXPORTED
            return None
        return sum(known)

    def _ratio(self, name: str, part: float | None, whole: float | None) -> float | None:
        if part is None or whole is None:
            self.missing[name] = NOT_EXPORTED
            return None
        if whole == 0:
            self.missing[name] = NO_OBSERVATIONS
            return None
        return part / whole

    def _gauges(self, engines: Sequence[EngineView]) -> dict[str, float | None]:
        running = gauge_grid(self._targets, Quantity.RUNNING, self.period)
        waiting = gauge_grid(self._targets, Quantity.WAITING, self.period)
        for quantity, values in ((Quantity.RUNNING, running), (Quantity.WAITING, waiting)):
            if values is None:
                self.missing[quantity] = NOT_EXPORTED
        kv_means = [e.kv_usage_mean for e in engines if e.kv_usage_mean is not None]
        kv_maxima = [e.kv_usage_max for e in engines if e.kv_usage_max is not None]
        if any(Quantity.KV_USAGE not in target.gauges for target in self._targets) or not kv_means:
            self.missing[Quantity.KV_USAGE] = NOT_EXPORTED
            kv_means = kv_maxima = []
        return {
            "running_mean": None if running is None else float(running.mean()),
            "running_max": None if running is None else float(running.max()),
            "running_plateau_ratio": None if running is None else plateau_ratio(running),
            "running_cap_ratio": None if running is None else float((running == running.max()).mean()),
            "waiting_mean": None if waiting is None else float(waiting.mean()),
            "waiting_max": None if waiting is None else float(waiting.max()),
            "waiting_ratio": None if waiting is None else float((waiting > 0).mean()),
            "kv_usage_mean": float(np.mean(kv_means)) if kv_means else None,
            "kv_usage_max": max(kv_maxima) if kv_maxima else None,
        }

    def _engines(self) -> tuple[EngineView, ...]:
        return tuple(
            _engine_view(target, engine, self.period)
            for target in self._targets
            for engine in sorted({name for series in target.gauges.values() for name in series})
        )


def _engine_view(target: TargetSeries, engine: str, period: Period) -> EngineView:
    inside = period.in_window(target.times_ns)

    def gauge(quantity: Quantity) -> np.ndarray[tuple[int], np.dtype[np.float64]] | None:
        values = target.gauges.get(quantity, {}).get(engine)
        if values is None:
            return None
        values = values[inside]
        values = values[~np.isnan(values)]
        return values if values.size else None

    def counter(quantity: Quantity) -> float | None:
        values = target.counters.get(quantity, {}).get(engine)
        return None if values is None else delta(target, {engine: values}, period)

    running, waiting, kv = gauge(Quantity.RUNNING), gauge(Quantity.WAITING), gauge(Quantity.KV_USAGE)
    return EngineView(
        target=target.target,
        engine=engine,
        running_mean=None if running is None else float(running.mean()),
        running_max=None if running is None else float(running.max()),
        running_plateau_ratio=None if running is None else plateau_ratio(running),
        waiting_mean=None if waiting is None else float(waiting.mean()),
        waiting_ratio=None if waiting is None else float((waiting > 0).mean()),
        kv_usage_mean=None if kv is None else float(kv.mean()),
        kv_usage_max=None if kv is None else float(kv.max()),
        preemptions=counter(Quantity.PREEMPTIONS),
        generation_tokens=counter(Quantity.GENERATION_TOKENS),
    )


def _imbalance(engines: Sequence[EngineView]) -> float | None:
    tokens = [e.generation_tokens for e in engines if e.generation_tokens is not None]
    if len(tokens) < 2 or len(tokens) < len(engines) or sum(tokens) <= 0:
        return None
    return max(tokens) / (sum(tokens) / len(tokens))


def _notes(models: Sequence[str], model: str | None, continuity: Continuity) -> tuple[str, ...]:
    notes = []
    if len(models) > 1:
        counted = f"only {model} is counted" if model in models else "all of them are counted together"
        notes.append(f"the metrics speak of {len(models)} models ({', '.join(models)}): {counted}")
    if continuity is Continuity.RESET:
        notes.append("a server restarted during the level: its counters started again")
    return tuple(notes)
