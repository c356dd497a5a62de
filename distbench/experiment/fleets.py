"""Which fleet a plan gets (floor F4)."""

from __future__ import annotations

from distbench.core.plan import NO_RAY, Plan
from distbench.experiment.observer import Observer
from distbench.fleet.base import Fleet
from distbench.fleet.local import LocalFleet


def make_fleet(plan: Plan, observer: Observer) -> Fleet:
    """
    Return the fleet of a plan, not yet started.

    Raises:
        FleetError: Ray, or the cluster, cannot be reached.
    """
    if plan.where.ray_address == NO_RAY:
        return LocalFleet(plan.load.clients or 1, trust_env=plan.target.trust_env)
    raise NotImplementedError
