"""
When the requests of an open loop are sent (floor F1).

The times are absolute, from the level's start, and fixed before the first request leaves: nothing that the server does moves them.
They are the times of the whole level, over all clients. The first spec.warmup slots are the warm-up; slot k belongs to the client
at position k modulo the number of clients, so that the streams of the clients interleave evenly and their union is the whole.
What sends at these times is in client/.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from distbench.core.draws import STREAM_ARRIVALS, draw_seed
from distbench.core.levels import LevelSpec
from distbench.core.prompts import Workload
from distbench.core.shards import level_share
from distbench.errors import PlanError
from distbench.units import NS_PER_S

Offsets = npt.NDArray[np.int64]

_BLOCK = 8192


def client_offsets_ns(spec: LevelSpec, workload: Workload, *, position: int, num_clients: int) -> Offsets:
    """
    Return the send times of one client's share of a level: its warm-up requests, then its measured ones.

    Args:
        spec: An open-loop level.
        workload: Gives the seed, and the times of a trace.
        position: The client's place among those that take part, as for core/shards.level_share, whose indices these times fit.
        num_clients: Clients that take part.

    Returns:
        Ascending, ns from the level's start. For a level that only a duration ends, the length says how many there are.

    Raises:
        PlanError: the level is no open loop, or lacks what its pattern needs.
    """
    offsets = offsets_ns(spec, seed=workload.seed, trace_ns=workload.send_times_ns())
    share = level_share(spec, position=position, num_clients=num_clients, num_targets=1)
    end = min(share.measured.stop, num_measured(spec, offsets))
    measured = range(share.measured.start, end, share.measured.step)
    slots = np.concatenate([_array(share.warmup), spec.warmup + _array(measured)])
    mine: Offsets = offsets[slots[slots < len(offsets)]]
    return mine


def _array(indices: range) -> Offsets:
    return np.arange(indices.start, indices.stop, indices.step, dtype=np.int64)


def num_measured(spec: LevelSpec, offsets: Offsets) -> int:
    """Return how many of a level's slots are measured ones."""
    return max(0, len(offsets) - spec.warmup)


def offsets_ns(spec: LevelSpec, *, seed: int, trace_ns: Offsets | None = None) -> Offsets:
    """
    Compute the send times of a whole level, warm-up first.

    Args:
        spec: An open-loop level. Its end is the number of requests, or the duration counted from the first measured slot (a slot at
            or past it is not sent), whichever comes first.
        seed: Any int; equal seeds and levels give equal times on every machine.
        trace_ns: Times that a trace prescribes, ascending; for pattern trace only.

    Returns:
        Shape (warm-up and measured requests,), ascending, ns from the level's start. May be shorter than the requests asked for
        where the duration or the trace ends first.

    Raises:
        PlanError: the level is no open loop, lacks what its pattern needs, or nothing would end it.

    Source: constant is k/rate, each rounded on its own, so that nothing drifts; poisson and gamma are cumulated gaps of mean
    1/rate, neither clamped nor rescaled, so that counts vary as they do in nature.
    """
    if spec.pattern == "trace":
        if trace_ns is None:
            raise PlanError("pattern trace needs a dataset with timestamps (dataset trace)")
        return _cut(spec, trace_ns[: _wanted(spec, len(trace_ns))])
    if spec.requests is None and spec.duration_s is None:
        raise PlanError("an open loop needs a number of requests or a duration")
    if spec.pattern == "paced":
        return _paced(spec)
    if spec.rate_rps is None or spec.rate_rps <= 0:
        raise PlanError(f"pattern {spec.pattern} needs a rate above 0")
    if spec.pattern == "constant":
        return _constant(spec, spec.rate_rps)
    if spec.pattern in ("poisson", "gamma"):
        return _cumulated(spec, spec.rate_rps, seed)
    raise PlanError(
        f"pattern {spec.pattern} has no schedule: the server's answers decide when the next request goes"
    )


def _wanted(spec: LevelSpec, otherwise: int) -> int:
    return otherwise if spec.requests is None else min(otherwise, spec.warmup + spec.requests)


def _cut(spec: LevelSpec, offsets: Offsets) -> Offsets:
    """Leave out what lies at or past the end of the duration."""
    if spec.duration_s is None or len(offsets) <= spec.warmup:
        return offsets
    end_ns = int(offsets[spec.warmup]) + spec.duration_s * NS_PER_S
    return offsets[: np.searchsorted(offsets, math.ceil(end_ns), side="left")]


def _constant(spec: LevelSpec, rate_rps: float) -> Offsets:
    count = _count(spec, rate_rps)
    return _cut(spec, np.rint(np.arange(count) * (NS_PER_S / rate_rps)).astype(np.int64))


def _paced(spec: LevelSpec) -> Offsets:
    if (
        spec.batch_size is None
        or spec.batch_interval_s is None
        or spec.batch_size < 1
        or spec.batch_interval_s <= 0
    ):
        raise PlanError("pattern paced needs a batch-size and a batch-interval above 0")
    batches = (
        np.arange(_count(spec, spec.batch_size / spec.batch_interval_s, spec.batch_size)) // spec.batch_size
    )
    return _cut(spec, np.rint(batches * (spec.batch_interval_s * NS_PER_S)).astype(np.int64))


def _count(spec: LevelSpec, rate_rps: float, spare: int = 1) -> int:
    """Return a number of slots that is enough for the requests and the duration."""
    counts = []
    if spec.requests is not None:
        counts.append(spec.requests)
    if spec.duration_s is not None:
        counts.append(math.ceil(spec.duration_s * rate_rps) + spare)
    return spec.warmup + min(counts)


def _cumulated(spec: LevelSpec, rate_rps: float, seed: int) -> Offsets:
    shape = 1.0 if spec.pattern == "poisson" else spec.burstiness
    generator = np.random.Generator(np.random.PCG64(draw_seed(seed, STREAM_ARRIVALS, spec.level)))
    blocks: list[npt.NDArray[np.float64]] = []
    have, last_s, end_s = 0, 0.0, math.inf
    wanted = math.inf if spec.requests is None else spec.warmup + spec.requests
    while have < wanted and last_s < end_s:
        # Whole blocks, whatever is wanted: the times of a shorter level are the first ones of a longer one.
        times = last_s + np.cumsum(generator.gamma(shape, 1.0 / (shape * rate_rps), _BLOCK))
        if spec.duration_s is not None and have <= spec.warmup < have + _BLOCK:
            end_s = float(times[spec.warmup - have]) + spec.duration_s
        blocks.append(times)
        have += _BLOCK
        last_s = float(times[-1])
    offsets = np.rint(np.concatenate(blocks) * NS_PER_S).astype(np.int64) if blocks else np.zeros(0, np.int64)
    return _cut(spec, offsets[: _wanted(spec, have)])
