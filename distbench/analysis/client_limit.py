"""
Was the client the limit? (floor F3, pure)

The tool accuses itself first. Three symptoms say that the load generator, not the server, held a level back: connections that idle
between a response and the next request, an event loop out of CPU, fewer requests in flight than asked. A server that has requests
waiting nearly all the time is full whatever the client's state, so a queue beats them all. Lag alone, from the kernel's stamp to the
read, is a caveat: servers send a whole step's tokens at once, and the stamps stay right.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distbench.analysis.noise import pooled_scatter

MAX_TURNAROUND_RATIO = 0.03
MAX_CPU_RATIO = 0.90
MIN_IN_FLIGHT_RATIO = 0.97
QUEUE_BEATS_RATIO = 0.80
_LAG_CAVEAT_S = 0.010

Floats = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ClientHealth:
    """
    The clients over one level, judged.

    Attributes:
        limited: None where no sample tells (then nothing is proven either way).
        evidence: Sentences with numbers: the symptoms, or the proof that there was none.
        caveats: What does not limit throughput but touches latencies.
        cpu_max: Highest mean CPU share of a client's loop, 0..1.
        lag_p99_s, turnaround_p99_s, send_lag_p99_s: Highest p99 of any client and sample; an upper bound of the pooled p99.
        turnaround_ratio: Idle turnaround over connection-time, 0..1; None in open loop.
        in_flight_mean: Requests, all clients together.
        in_flight_ratio: in_flight_mean over the connections asked; None in open loop.
        clients: Clients with samples.
    """

    limited: bool | None
    evidence: tuple[str, ...]
    caveats: tuple[str, ...] = ()
    cpu_max: float | None = None
    lag_p99_s: float | None = None
    turnaround_p99_s: float | None = None
    send_lag_p99_s: float | None = None
    turnaround_ratio: float | None = None
    in_flight_mean: float | None = None
    in_flight_ratio: float | None = None
    clients: int = 0

    @property
    def is_proven(self) -> bool:
        """Whether the samples prove that the client was not the limit."""
        return self.limited is False

    def level_columns(self) -> dict[str, float | None]:
        """Return the columns of levels.parquet that come from the clients' samples (in_flight_mean is not one of them)."""
        return {
            "client_cpu_max": self.cpu_max,
            "client_lag_p99_s": self.lag_p99_s,
            "turnaround_p99_s": self.turnaround_p99_s,
            "turnaround_ratio": self.turnaround_ratio,
            "send_lag_p99_s": self.send_lag_p99_s,
        }


def client_health(
    samples: pa.Table,
    *,
    window_ns: tuple[int, int] | None,
    connections: int,
    clients: int,
    closed_loop: bool = True,
    waiting_ratio: float | None = None,
    turnaround_ratio: float | None = None,
    in_flight_mean: float | None = None,
    disturbed: str | None = None,
) -> ClientHealth:
    """
    Judge the clients of one level.

    Args:
        samples: Schema CLIENTS, rows of this level only.
        window_ns: Its window, ns since the epoch; None, or a window that holds no sample: all samples count.
        connections: Asked, over all clients.
        clients: Clients of the level; one without samples proves nothing.
        closed_loop: Whether every connection should always be busy (pattern burst). In open loop idle connections are the plan's.
        waiting_ratio: Share of the server's scrapes with requests waiting; None: not known.
        turnaround_ratio: Idle turnaround over connection-time from the request rows; None: from the samples.
        in_flight_mean: Requests in flight over the window from the request rows; None: from the samples.
        disturbed: What ended the level early, or took clients from it; the others are not to blame for what they look like then. None:
            nothing.

    Source: the rule and its thresholds are explained in docs/verdicts.md.
    """
    rows = _inside(samples, window_ns)
    if rows.num_rows == 0:
        return ClientHealth(limited=None, evidence=("no health samples of the clients",))
    client, interval = _column(rows, "client"), _column(rows, "interval_s")
    seen = sorted({int(number) for number in client})

    def means(name: str) -> list[float]:
        values = _column(rows, name)
        found = [_weighted_mean(values, interval, client == number) for number in seen]
        return [value for value in found if value is not None]

    in_flight = math.fsum(means("in_flight_mean")) if in_flight_mean is None else in_flight_mean
    if turnaround_ratio is None:
        held = float((_column(rows, "connections") * interval).sum())
        idle = float(np.nansum(_column(rows, "turnaround_sum_s")))
        turnaround_ratio = idle / held if held > 0 else None
    measured = ClientHealth(
        limited=None,
        evidence=(),
        cpu_max=max(means("loop_cpu_ratio"), default=None),
        lag_p99_s=_highest(rows, "lag_p99_s"),
        turnaround_p99_s=_highest(rows, "turnaround_p99_s"),
        send_lag_p99_s=_highest(rows, "send_lag_p99_s"),
        turnaround_ratio=turnaround_ratio if closed_loop else None,
        in_flight_mean=in_flight,
        in_flight_ratio=in_flight / connections if closed_loop and connections else None,
        clients=len(seen),
    )
    if disturbed is not None:
        return dataclasses.replace(
            measured, evidence=(f"{disturbed}: its samples say nothing of the client",)
        )
    return _judge(measured, connections, clients, waiting_ratio)


def _judge(health: ClientHealth, connections: int, clients: int, waiting_ratio: float | None) -> ClientHealth:
    symptoms = _symptoms(health, connections)
    caveats = _caveats(health)
    limited: bool | None
    if symptoms and waiting_ratio is not None and waiting_ratio >= QUEUE_BEATS_RATIO:
        limited, caveats = False, (*symptoms, *caveats)
        evidence: tuple[str, ...] = (
            f"requests waited at the server in {waiting_ratio:.0%} of the scrapes: it was full all the same",
        )
    elif symptoms:
        limited, evidence = True, symptoms
    elif health.clients < clients:
        limited = None
        evidence = (f"health samples from {health.clients} of {clients} clients: the others prove nothing",)
    else:
        evidence = _proof(health, connections)
        limited = False if evidence else None
    return dataclasses.replace(health, limited=limited, evidence=evidence, caveats=caveats)


def _symptoms(health: ClientHealth, connections: int) -> tuple[str, ...]:
    symptoms = []
    if health.turnaround_ratio is not None and health.turnaround_ratio > MAX_TURNAROUND_RATIO:
        symptoms.append(
            f"connections idled {health.turnaround_ratio:.1%} of their time between a response and the next request "
            f"(limit {MAX_TURNAROUND_RATIO:.0%})"
        )
    if health.cpu_max is not None and health.cpu_max >= MAX_CPU_RATIO:
        symptoms.append(
            f"a client's loop used {health.cpu_max:.0%} of its CPU (limit {MAX_CPU_RATIO:.0%}) with no steady queue at the server"
        )
    if health.in_flight_ratio is not None and health.in_flight_ratio < MIN_IN_FLIGHT_RATIO:
        symptoms.append(
            f"{health.in_flight_mean:.1f} requests in flight of {connections} asked "
            f"({health.in_flight_ratio:.1%}, limit {MIN_IN_FLIGHT_RATIO:.0%})"
        )
    return tuple(symptoms)


def _proof(health: ClientHealth, connections: int) -> tuple[str, ...]:
    proof = []
    if health.turnaround_ratio is not None:
        proof.append(f"connections idled {health.turnaround_ratio:.2%} of their time")
    if health.cpu_max is not None:
        proof.append(f"the busiest client's loop used {health.cpu_max:.0%} of its CPU")
    if health.in_flight_ratio is not None:
        proof.append(f"{health.in_flight_mean:.1f} of {connections} asked requests were in flight")
    return tuple(proof)


def _caveats(health: ClientHealth) -> tuple[str, ...]:
    if health.lag_p99_s is None or health.lag_p99_s < _LAG_CAVEAT_S:
        return ()
    return (
        f"clients read up to {health.lag_p99_s * 1000:.0f} ms (p99) after the kernel had the bytes; "
        "kernel stamps take that out of the latencies",
    )


def _inside(samples: pa.Table, window_ns: tuple[int, int] | None) -> pa.Table:
    """Keep the samples whose middle lies inside the window."""
    if window_ns is None or samples.num_rows == 0:
        return samples
    middle = _column(samples, "time_ns") - _column(samples, "interval_s") * 5e8
    inside = (middle >= window_ns[0]) & (middle <= window_ns[1])
    return samples.filter(pa.array(inside)) if inside.any() else samples


def _column(rows: pa.Table, name: str) -> Floats:
    values: Floats = pc.cast(rows[name], pa.float64()).to_numpy()
    return values


def _weighted_mean(values: Floats, weights: Floats, mask: npt.NDArray[np.bool_]) -> float | None:
    usable = mask & ~np.isnan(values)
    total = float(weights[usable].sum())
    return float((values[usable] * weights[usable]).sum()) / total if total > 0 else None


def _highest(rows: pa.Table, name: str) -> float | None:
    values = _column(rows, name)
    return None if np.isnan(values).all() else float(np.nanmax(values))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """
    The peak repeated with twice the clients and the same connections.

    Attributes:
        agrees: Whether both rates agree within noise.
        ratio: Rate with twice the clients over the rate before.
        text: The proof, or the finding.
    """

    agrees: bool
    ratio: float
    text: str


def verify_client(before: Sequence[float], doubled: Sequence[float], clients: int) -> Verification:
    """
    Compare the peak's readings with those of twice the clients.

    Args:
        before: Rates at the peak with ``clients`` clients; at least one.
        doubled: Rates with twice as many; at least one.
        clients: Clients before.
    """
    scatter = pooled_scatter([before, doubled])
    first, second = math.fsum(before) / len(before), math.fsum(doubled) / len(doubled)
    ratio = second / first
    allowed = max(0.03, 2 * scatter.relative_sd * math.sqrt(1 / len(before) + 1 / len(doubled)))
    agrees = abs(ratio - 1) <= allowed
    numbers = f"{clients} clients: {first:.4g}/s, {2 * clients} clients: {second:.4g}/s ({ratio - 1:+.1%}, noise {allowed:.1%})"
    if agrees:
        text = f"twice the clients change nothing, so the client was not the limit: {numbers}"
    elif ratio > 1:
        text = f"twice the clients get more out of the server, so the client was the limit: {numbers}"
    else:
        text = f"twice the clients get less, so the client side or the network costs throughput: {numbers}"
    return Verification(agrees=agrees, ratio=ratio, text=text)
