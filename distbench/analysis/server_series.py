"""
Rows of server/ as one series a quantity, a target and an engine (floor F3, pure).

The rules of reading them live here: which of several names counts, what is added (engines with a queue of their own, and the parts of a
counter such as finished_reason), what is not (ranks that work on the same requests: the largest is taken), and that a series which
is not there is missing, never zero.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distbench.telemetry.detect import Continuity, continuity_of_counter, continuity_of_identity, worst
from distbench.telemetry.gpu import GPU_FAMILIES
from distbench.telemetry.vocabulary import (
    ANALYSED,
    CACHE_CONFIG,
    ENGINE_LABELS,
    FAMILIES,
    MODEL_LABELS,
    PROCESS_START,
    REPLICATED_LABELS,
    STEP_BUCKETS,
    TRAFFIC_COUNTERS,
    Quantity,
    Shape,
    resolve,
    sample_names,
    time_scale,
)

Floats = npt.NDArray[np.float64]
Labels = tuple[tuple[str, str], ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TargetSeries:
    """
    All readings of one target.

    Attributes:
        target: As in the rows.
        times_ns: Ascending, shape (n,); one entry a scrape.
        gauges: By quantity and engine, shape (n,); NaN where a scrape did not hold it.
        counters: The same for running counts.
        sums, counts: The same for observed quantities; sums of times are seconds.
        step_buckets: By upper bound, ascending: engine steps of so many tokens or fewer, by engine; empty where not exported.
        models: Names of the models that the series speak of.
        cache_config: Labels of the cache configuration; empty where not exported.
        continuity: Whether one server, running all the time, answered all scrapes.
    """

    target: str
    times_ns: npt.NDArray[np.int64]
    gauges: Mapping[Quantity, Mapping[str, Floats]]
    counters: Mapping[Quantity, Mapping[str, Floats]]
    sums: Mapping[Quantity, Mapping[str, Floats]]
    counts: Mapping[Quantity, Mapping[str, Floats]]
    step_buckets: Mapping[float, Mapping[str, Floats]]
    models: tuple[str, ...]
    cache_config: Mapping[str, str]
    continuity: Continuity


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ServerSeries:
    """
    All readings of all targets.

    Attributes:
        targets: Those that export anything a server exports, in the order of their names.
        gpu_readings: (time_ns, GPU, family, value) of the DCGM families.
    """

    targets: tuple[TargetSeries, ...]
    gpu_readings: tuple[tuple[int, str, str, float | None], ...]


def server_series(
    rows: pa.Table, *, model: str | None = None, helps: Mapping[str, str] | None = None
) -> ServerSeries:
    """
    Order the rows of a period.

    Args:
        rows: Schema SERVER, in any order.
        model: Where a target serves several models, the one whose series count; None: all of them together.
        helps: HELP texts by family name, for units; None: names alone decide.

    Returns:
        The series; no targets where the rows hold none that is known.
    """
    wanted = pa.array(sorted(ANALYSED | set(GPU_FAMILIES)), type=pa.string())
    table = rows.filter(pc.is_in(rows["name"], value_set=wanted))
    readings: dict[str, dict[str, dict[Labels, dict[int, float | None]]]] = {}
    gpu_readings = []
    columns = (table.column(name).to_pylist() for name in ("time_ns", "target", "name", "labels", "value"))
    for time_ns, target, name, label_list, value in zip(*columns, strict=True):
        labels = tuple(label_list)
        if name in GPU_FAMILIES:
            gpu_readings.append((time_ns, _gpu_identity(target, dict(labels)), name, value))
        else:
            series = readings.setdefault(target, {}).setdefault(name, {}).setdefault(labels, {})
            series[time_ns] = value
    return ServerSeries(
        targets=tuple(
            _target_series(target, readings[target], model, helps or {})
            for target in sorted(readings)
            if any(name not in (PROCESS_START, CACHE_CONFIG) for name in readings[target])
        ),
        gpu_readings=tuple(gpu_readings),
    )


def _gpu_identity(target: str, labels: Mapping[str, str]) -> str:
    return f"{target} {labels.get('UUID') or labels.get('gpu', '')} {labels.get('GPU_I_ID', '')}"


def _target_series(
    target: str,
    by_name: Mapping[str, Mapping[Labels, Mapping[int, float | None]]],
    model: str | None,
    helps: Mapping[str, str],
) -> TargetSeries:
    times = sorted({time for series in by_name.values() for line in series.values() for time in line})
    models = sorted(
        {
            value
            for series in by_name.values()
            for labels in series
            for k, value in labels
            if k in MODEL_LABELS
        }
    )
    keep_model = model if model in models else None
    chosen = resolve(by_name)
    gauges: dict[Quantity, dict[str, Floats]] = {}
    counters: dict[Quantity, dict[str, Floats]] = {}
    sums: dict[Quantity, dict[str, Floats]] = {}
    counts: dict[Quantity, dict[str, Floats]] = {}
    for quantity, name in chosen.items():
        parts = [_by_engine(by_name[sample], times, keep_model) for sample in sample_names(quantity, name)]
        shape = FAMILIES[quantity].shape
        if shape is Shape.GAUGE:
            gauges[quantity] = parts[0]
        elif shape is Shape.COUNTER:
            counters[quantity] = parts[0]
        else:
            scale = time_scale(name, helps.get(name)) if FAMILIES[quantity].is_time else 1.0
            sums[quantity] = {engine: values * scale for engine, values in parts[0].items()}
            counts[quantity] = parts[1]
    return TargetSeries(
        target=target,
        times_ns=np.array(times, dtype=np.int64),
        gauges=gauges,
        counters=counters,
        sums=sums,
        counts=counts,
        step_buckets=_step_buckets(by_name.get(STEP_BUCKETS, {}), times, keep_model),
        models=tuple(models),
        cache_config=_cache_config(by_name.get(CACHE_CONFIG, {})),
        continuity=_continuity(by_name, times, counters),
    )


def _step_buckets(
    series: Mapping[Labels, Mapping[int, float | None]], times: Sequence[int], model: str | None
) -> dict[float, dict[str, Floats]]:
    by_bound: dict[float, dict[Labels, Mapping[int, float | None]]] = {}
    for labels, values in series.items():
        by_bound.setdefault(float(dict(labels).get("le", "inf")), {})[labels] = values
    return {bound: _by_engine(by_bound[bound], times, model) for bound in sorted(by_bound)}


def _by_engine(
    series: Mapping[Labels, Mapping[int, float | None]], times: Sequence[int], model: str | None
) -> dict[str, Floats]:
    """Add up the series of each engine: parts of one rank are added, replicated ranks are not."""
    ranks: dict[str, dict[Labels, list[Floats]]] = {}
    for labels, values in series.items():
        words = dict(labels)
        if model is not None and any(words.get(key, model) != model for key in MODEL_LABELS):
            continue
        engine = next((words[key] for key in ENGINE_LABELS if key in words), "")
        rank = tuple(pair for pair in labels if pair[0] in REPLICATED_LABELS)
        line = np.array([_number(values.get(time)) for time in times])
        ranks.setdefault(engine, {}).setdefault(rank, []).append(line)
    return {
        engine: np.fmax.reduce([_sum_known(lines) for lines in by_rank.values()])
        for engine, by_rank in ranks.items()
    }


def _number(value: float | None) -> float:
    return np.nan if value is None else value


def _sum_known(lines: Sequence[Floats]) -> Floats:
    """Add series, a missing reading beside known ones counting nothing; NaN only where all are missing."""
    stack = np.vstack(lines)
    total: Floats = np.nansum(stack, axis=0)
    total[np.isnan(stack).all(axis=0)] = np.nan
    return total


def _cache_config(series: Mapping[Labels, Mapping[int, float | None]]) -> Mapping[str, str]:
    newest = max(series, key=lambda labels: max(series[labels]), default=())
    return dict(newest)


def _continuity(
    by_name: Mapping[str, Mapping[Labels, Mapping[int, float | None]]],
    times: Sequence[int],
    counters: Mapping[Quantity, Mapping[str, Floats]],
) -> Continuity:
    """Judge by the process' start time, the stamps of the counters' creation, and the counters of traffic themselves."""
    verdicts = []
    for name, series in by_name.items():
        if name == PROCESS_START or name.endswith("_created"):
            verdicts += [
                continuity_of_identity([line.get(time) for time in times]) for line in series.values()
            ]
    for quantity in TRAFFIC_COUNTERS:
        for values in counters.get(quantity, {}).values():
            verdicts.append(continuity_of_counter(known(values)))
    return worst(verdicts)


def known(values: Iterable[float]) -> list[float | None]:
    """Return a series with None for what is missing."""
    return [None if np.isnan(value) else float(value) for value in values]
