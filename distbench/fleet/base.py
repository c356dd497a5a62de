"""
The fleet as the experiment sees it (floor F4): a number of clients, started, told, listened to, ended.

Two implementations keep this Protocol and pass one conformance suite: local.py (threads of this process, no Ray) and ray_fleet.py
(actors of a Ray cluster). Nothing here waits without a limit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Protocol

from distbench.client.messages import ClientEvent, HostInfo, ProbeResult, RequestSettings
from distbench.clock import ClockOffset
from distbench.core.levels import LevelSpec
from distbench.core.prompts import Workload
from distbench.wire.base import WireTarget


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FleetSetup:
    """
    What all clients are told once; the fleet adds each client's index. Holds secrets: never write or log it.

    Attributes: as ClientSetup, plus
        epoch_monotonic_ns: The run's epoch on the driver's CLOCK_MONOTONIC.
    """

    targets: tuple[WireTarget, ...]
    target_names: tuple[str, ...]
    request: RequestSettings
    workload: Workload
    http_client: str
    epoch_monotonic_ns: int


# Connections that a client opens per second ahead of a level, with a margin for slow machines and TLS.
_CONNECTS_PER_S = 1_000


def start_lead_s(spec: LevelSpec, num_clients: int, lead_s: float) -> float:
    """
    Return how far ahead a level is ordered, so that every client has heard of it and has its connections open at the start.

    Args:
        spec: The level.
        num_clients: Clients that take part.
        lead_s: At least so much.
    """
    return lead_s + spec.connections / num_clients / _CONNECTS_PER_S


class LevelRun(Protocol):
    """A level under way."""

    @property
    def clients(self) -> tuple[int, ...]:
        """Indices of the clients that take part, in the order of their positions: level_share(position=i) is clients[i]'s share."""
        ...

    @property
    def start_ns(self) -> int:
        """When the first request is to be sent, on the driver's CLOCK_MONOTONIC."""
        ...

    def events(self, timeout_s: float) -> Iterator[ClientEvent]:
        """
        Yield the events that are there, waiting up to timeout_s for the first; return when there are no more for now.

        Call it again until finished() is true. Rows of a client always come before its Finished or Lost.
        """
        ...

    def finished(self) -> bool:
        """True once every client has sent Finished or was declared Lost, and all events were yielded."""
        ...

    def stop(self) -> None:
        """Ask all clients to cut what is in flight and report; finished() becomes true soon after. Never blocks."""
        ...


class Fleet(Protocol):
    """The clients of one run."""

    @property
    def num_clients(self) -> int:
        """Clients alive at the start of the run (after a re-division by allow_fewer)."""
        ...

    def start(self) -> Sequence[HostInfo]:
        """
        Start the clients and return where they live.

        Raises:
            PlacementError: fewer places than asked; FleetError, ClientStartTimeout: anything else.
        """
        ...

    def setup(self, setup: FleetSetup) -> Sequence[ProbeResult]:
        """
        Tell every client its setup; each tries every target once (connect only) and the results come back.

        Raises:
            FleetError: a client does not answer in time.
        """
        ...

    def measure_clocks(self) -> Sequence[ClockOffset]:
        """Return each client's clock offset to the driver, measured now, while idle."""
        ...

    def start_level(self, spec: LevelSpec, *, lead_s: float = 1.0) -> LevelRun:
        """
        Order a level to start on all live clients at once, lead_s from now plus what their connections take to open.

        Raises:
            FleetError: no client is left.
        """
        ...

    def alive(self) -> Sequence[bool]:
        """Return for each client whether it can take another level."""
        ...

    def close(self) -> None:
        """End all clients, within a limit; a second call does nothing."""
        ...
