"""Which fleet a plan gets (floor F4)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from distbench.core.plan import NO_RAY, Plan
from distbench.experiment.observer import Observer
from distbench.experiment.planners import planned_levels
from distbench.fleet.base import Fleet
from distbench.fleet.local import LocalFleet

if TYPE_CHECKING:
    from distbench.fleet.ray_runtime import RayRuntime


@contextmanager
def fleet_for(plan: Plan, observer: Observer) -> Iterator[Fleet]:
    """
    Give the fleet of a plan, its clients not yet started, and end it with the block, Ray included.

    Raises:
        FleetError: Ray, or the cluster, cannot be reached.
    """
    if plan.where.ray_address == NO_RAY:
        with contextlib.closing(LocalFleet(plan.load.clients or 1, trust_env=plan.target.trust_env)) as local:
            yield local
        return
    # Ray takes a second to import; nobody should wait for it to hear of a typo.
    from distbench.fleet.ray_runtime import RayRuntime

    address = plan.where.ray_address
    observer.stage("starting Ray" if address is None else f"joining the Ray cluster at {address}")
    with contextlib.closing(RayRuntime(address)) as runtime:
        runtime.start()
        with contextlib.closing(_ray_fleet(plan, runtime)) as fleet:
            yield fleet


def _ray_fleet(plan: Plan, runtime: RayRuntime) -> Fleet:
    from distbench.fleet.placement import PlacementRules, plan_clients
    from distbench.fleet.ray_fleet import RayFleet

    rules = PlacementRules(
        resource=plan.where.client_resource,
        label=plan.where.client_label,
        per_node=plan.where.clients_per_node,
        allow_fewer=plan.where.allow_fewer,
    )
    num_clients = plan.load.clients
    if num_clients is None:
        most = max(spec.connections for spec in planned_levels(plan))
        num_clients = plan_clients(most, runtime.nodes(), rules)
    return RayFleet(num_clients, runtime, rules=rules, trust_env=plan.target.trust_env)
