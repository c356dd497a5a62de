"""A level: a span of load with one setting, as the driver describes it to every client (floor F1)."""

from __future__ import annotations

import dataclasses
import math

from distbench.core.plan import LoadPlan, Plan

_WARMUP_S = 2.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LevelSpec:
    """
    One level. All numbers are TOTALS over all clients.

    Attributes:
        level: Number in the run, from 0; each repeat is a level of its own, so that its prompts differ.
        repeat: 0 for the first visit of a setting, then 1, 2, ...
        connections: Connections held (closed loop), or the cap of them (open loop).
        requests: Measured requests; None where only the duration ends the level.
        warmup: Warm-up requests, sent before the measured ones on the same connections. Open loop: the first so many slots of the
            schedule.
        duration_s: Measured seconds after which the level is cut, counted from a client's first measured request (open loop: from
            the first measured slot); None: only the requests end it.
        pattern: burst | paced | constant | poisson | gamma | trace.
        rate_rps: Offered requests/s of the open-loop patterns; None elsewhere.
        burstiness: Shape of the gamma pattern: 1 is Poisson, below 1 burstier.
        batch_size: Requests of one paced batch; None elsewhere.
        batch_interval_s: Time between the starts of paced batches; None elsewhere.
        users_per_request: User messages packed into each request.
        max_failures: The level ends early after so many failed requests (per run, checked by the driver); None: never.
    """

    level: int
    repeat: int = 0
    connections: int
    requests: int | None
    warmup: int
    duration_s: float | None = None
    pattern: str = "burst"
    rate_rps: float | None = None
    burstiness: float = 1.0
    batch_size: int | None = None
    batch_interval_s: float | None = None
    users_per_request: int = 1
    max_failures: int | None = None

    def lengthened(self, factor: int) -> LevelSpec:
        """Return the same level with so many times the requests and the seconds."""
        return dataclasses.replace(
            self,
            requests=None if self.requests is None else self.requests * factor,
            duration_s=None if self.duration_s is None else self.duration_s * factor,
        )

    @property
    def is_open_loop(self) -> bool:
        """True where the plan, not the server, decides when a request is sent."""
        return self.pattern != "burst"


def default_requests(connections: int) -> int:
    """Return the measured requests of a level that names none: enough for a window, at least 8 per connection."""
    return max(400, 8 * connections)


def level_from_plan(plan: Plan, *, level: int, connections: int, repeat: int = 0) -> LevelSpec:
    """
    Build the level of a plan at a number of connections, defaults filled in.

    The warm-up defaults to one request per connection: each has then connected and been served before the measured part. In open
    loop, where the number of connections is only a cap, it defaults to two seconds of the schedule or one paced batch, but not
    more than the cap; a trace has none.
    """
    load = plan.load
    requests = load.requests
    if requests is None and load.duration_s is None:
        requests = default_requests(connections)
    return LevelSpec(
        level=level,
        repeat=repeat,
        connections=connections,
        requests=requests,
        warmup=_default_warmup(load, connections) if load.warmup is None else load.warmup,
        duration_s=load.duration_s,
        pattern=load.pattern,
        rate_rps=load.rate_rps,
        burstiness=load.burstiness,
        batch_size=load.batch_size,
        batch_interval_s=load.batch_interval_s,
        users_per_request=plan.prompts.users_per_request[0],
        max_failures=load.max_failures,
    )


def _default_warmup(load: LoadPlan, connections: int) -> int:
    if load.rate_rps is not None:
        return min(connections, math.ceil(_WARMUP_S * load.rate_rps))
    if load.batch_size is not None:
        return min(connections, load.batch_size)
    return 0 if load.pattern == "trace" else connections
