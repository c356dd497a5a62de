"""Drives a fleet through a level and gathers what it tells."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

from distbench.client.messages import ClientEvent, Finished, Health, Lost, Progress, Rows
from distbench.core.levels import LevelSpec
from distbench.fleet.base import Fleet, FleetSetup, LevelRun
from tests.client.plans import TinyWorkload, request_settings, wire_target


def fleet_setup(*urls: str, workload: TinyWorkload | None = None, **target: Any) -> FleetSetup:
    """Return a setup for these base URLs."""
    return FleetSetup(
        targets=tuple(wire_target(url, **target) for url in urls),
        target_names=urls,
        request=request_settings(),
        workload=workload or TinyWorkload(),
        http_client="fast",
        epoch_monotonic_ns=time.monotonic_ns(),
    )


@dataclasses.dataclass
class FleetResult:
    """
    What a level gave.

    Attributes:
        rows: All rows; health: all samples; finished, lost: last words by client; run: the level itself; events: in order.
    """

    run: LevelRun
    events: list[ClientEvent] = dataclasses.field(default_factory=list)
    rows: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    health: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    progress: list[Progress] = dataclasses.field(default_factory=list)
    finished: dict[int, Finished] = dataclasses.field(default_factory=dict)
    lost: dict[int, Lost] = dataclasses.field(default_factory=dict)

    def add(self, event: ClientEvent) -> None:
        """Sort an event in."""
        self.events.append(event)
        if isinstance(event, Rows):
            self.rows += event.table.to_pylist()
        elif isinstance(event, Health):
            self.health += event.table.to_pylist()
        elif isinstance(event, Progress):
            self.progress.append(event)
        elif isinstance(event, Finished):
            self.finished[event.client] = event
        else:
            self.lost[event.client] = event


def drive(
    fleet: Fleet,
    spec: LevelSpec,
    *,
    during: Callable[[LevelRun, FleetResult], None] | None = None,
    limit_s: float = 40.0,
) -> FleetResult:
    """
    Run a level to its end.

    Args:
        fleet: Set up.
        spec: The level.
        during: Called after every look at the events.
        limit_s: Fails when the level takes longer.
    """
    run = fleet.start_level(spec, lead_s=0.3)
    result = FleetResult(run)
    end_s = time.monotonic() + limit_s
    while not run.finished():
        assert time.monotonic() < end_s, "the level does not end"
        for event in run.events(0.2):
            result.add(event)
        if during is not None:
            during(run, result)
    return result
