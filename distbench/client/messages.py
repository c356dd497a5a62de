"""
What crosses between the driver and a client (floor F3): plain picklable values, the same for every fleet.

Down go one ClientSetup per run and one LevelStart per level. Up comes one stream of events per level: rows, counters and health
samples, and at its end either Finished or (made by the fleet, not by the client) Lost. The stream is also the sign of life.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from distbench.clock import ClockOffset
from distbench.core.levels import LevelSpec
from distbench.core.prompts import Workload
from distbench.wire.base import WireTarget


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RequestSettings:
    """
    How every request's body is made.

    Attributes:
        model: Name sent to the server.
        endpoint: chat | completions.
        stream, usage, ignore_eos: As in TargetPlan, after the preflight's probes.
        extra_body: Merged into the JSON last.
        retries: Resends of a request answered by 429 or 503.
    """

    model: str
    endpoint: str
    stream: bool
    usage: bool
    ignore_eos: bool
    extra_body: Mapping[str, Any]
    retries: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ClientSetup:
    """
    Everything a client is told once. It holds secrets (in WireTarget.headers): never write or log it.

    Attributes:
        client: Index of this client.
        targets: One per base URL, same order as the plan.
        target_names: Base URLs as they stand in the rows.
        request: How bodies are made.
        workload: Prompts.
        http_client: fast | httpx.
    """

    client: int
    targets: tuple[WireTarget, ...]
    target_names: tuple[str, ...]
    request: RequestSettings
    workload: Workload
    http_client: str = "fast"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LevelStart:
    """
    The order to run one level.

    Attributes:
        spec: The level.
        position: The client's place among those that take part in this level; its share follows from it (core/shards.py).
        num_clients: How many take part: those alive. Fewer than at the run's start after a loss.
        epoch_ns: The run's epoch on this client's own CLOCK_MONOTONIC; all stamps that leave the client are relative to it.
        start_ns: When to send the first request, on this client's own CLOCK_MONOTONIC.
        hard_end_ns: When to stop whatever happens, same clock; None: no such limit.
    """

    spec: LevelSpec
    position: int
    num_clients: int
    epoch_ns: int
    start_ns: int
    hard_end_ns: int | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HostInfo:
    """
    Where a client lives.

    Attributes:
        client: Index.
        hostname, node_id, address: Of its machine; node_id is Ray's, "" without Ray; address is the node's IP.
        pid: Of its process.
        clock_identity: distbench.clock.clock_identity().
        python, distbench, ray: Versions; ray is "" without Ray.
        num_cpus: CPUs it may run on.
        open_files_limit: Soft limit of open files after raising it.
        local_ports: Local ports that the machine's kernel hands out for connections to one address.
        proxies: Proxy variables in effect by name, credentials masked; empty where trust_env is off.
        uvloop: Whether its loop is uvloop.
        kernel_stamps: Whether the kernel stamps what it receives.
        compiled: Whether its hot path is compiled code; see wire/hot_path.py.
    """

    client: int
    hostname: str
    node_id: str
    address: str
    pid: int
    clock_identity: str
    python: str
    distbench: str
    ray: str
    num_cpus: int
    open_files_limit: int
    local_ports: int
    proxies: Mapping[str, str] = dataclasses.field(default_factory=dict)
    uvloop: bool = True
    kernel_stamps: bool = True
    compiled: bool = True


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Finished requests in the schema of store/schema.py (REQUESTS), stamps relative to the run's epoch."""

    client: int
    table: pa.Table


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """Health samples in the schema of store/schema.py (CLIENTS)."""

    client: int
    table: pa.Table


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """
    Counters of a client since the level's start, sent about every 0.5 s.

    Attributes:
        connected: Open connections now; in_flight: requests now; waiting_parse: answers received but not yet parsed.
        sent, ok, failed, cut, dropped: Requests, warm-up not included; warmup_done: finished warm-up requests.
        output_tokens: Completion tokens of finished measured requests plus content chunks seen of running ones, an estimate.
        last_error: Kind and text of the latest failure; None.
        at_ns: Relative to the run's epoch.
    """

    client: int
    connected: int
    in_flight: int
    waiting_parse: int
    warmup_done: int
    sent: int
    ok: int
    failed: int
    cut: int
    dropped: int
    output_tokens: int
    last_error: str | None
    at_ns: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """
    The client's last word on a level: every request of its share has a row that was sent before this.

    Attributes:
        measured_start_ns: When its first measured request was taken; None where none was. Relative to the run's epoch.
        pool_empty_ns: When its last measured request was taken; None where the level ended before. Relative to the run's epoch.
        reason: complete | deadline | stopped | driver_silent | hard_end | results_not_collected.
        start_delay_ns: First send - asked start; None where nothing was sent.
    """

    client: int
    measured_start_ns: int | None
    pool_empty_ns: int | None
    reason: str
    start_delay_ns: int | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """A client died or fell silent; made by the fleet. Rows sent before were delivered."""

    client: int
    reason: str


ClientEvent = Rows | Health | Progress | Finished | Lost


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """
    What a client found when it tried a target before the load.

    Attributes:
        target: Base URL.
        connect_s: Connect time; None where it failed.
        error: One sentence; None where it works.
    """

    client: int
    target: str
    connect_s: float | None
    error: str | None


__all__ = [
    "ClientEvent",
    "ClientSetup",
    "ClockOffset",
    "Finished",
    "Health",
    "HostInfo",
    "LevelStart",
    "Lost",
    "ProbeResult",
    "Progress",
    "RequestSettings",
    "Rows",
]
