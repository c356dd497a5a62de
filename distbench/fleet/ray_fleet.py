"""
The fleet on Ray: one actor a client, placed evenly over the cluster's nodes (floor F4).

Ray carries plans down and batches of rows up. Every wait has a limit: an actor that cannot be placed, started or heard becomes an
error or a lost client, never a hang.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from distbench.client.messages import HostInfo, LevelStart, ProbeResult
from distbench.client.watchdog import DEFAULT_SILENCE_LIMIT_S
from distbench.clock import SAME_CLOCK, ClockOffset, clock_identity, estimate_offset
from distbench.core.levels import LevelSpec
from distbench.errors import ClientStartTimeout, FleetError
from distbench.fleet.base import FleetSetup, start_lead_s
from distbench.fleet.pinger import Pinger
from distbench.fleet.placement import Node, PlacementRules, is_settling, place
from distbench.fleet.ray_actor import LoadClientActor
from distbench.fleet.ray_level import SILENCE_LIMIT_S, RayLevelRun
from distbench.fleet.ray_runtime import RayRuntime
from distbench.units import s_to_ns

_START_LIMIT_S = 60.0
_SETUP_LIMIT_S = 90.0
# The CPUs of a run that has just ended are free again only a moment later.
_PLACES_LIMIT_S = 5.0
_PLACES_POLL_S = 0.25
_PING_LIMIT_S = 5.0
_CLOSE_LIMIT_S = 5.0
_PING_INTERVAL_S = 1.0
_ROUND_TRIPS = 200
# An item that the driver has not taken; a client with so many waits, which bounds what lies in the object store.
_UNTAKEN_ITEMS = 4


class RayFleet:
    """Clients as actors of a Ray cluster. It does not own the RayRuntime it is given; close that after the fleet."""

    def __init__(
        self,
        num_clients: int,
        runtime: RayRuntime,
        *,
        rules: PlacementRules | None = None,
        trust_env: bool = False,
        ping_interval_s: float = _PING_INTERVAL_S,
        silence_limit_s: float = DEFAULT_SILENCE_LIMIT_S,
        client_silence_limit_s: float = SILENCE_LIMIT_S,
        start_limit_s: float = _START_LIMIT_S,
    ) -> None:
        """
        Prepare; nothing runs before start().

        Args:
            num_clients: How many are asked for; >= 1.
            runtime: Ray, started by start() where it is not yet.
            rules: Where clients may go; None: any node without GPUs.
            trust_env: Whether proxy variables are obeyed.
            ping_interval_s: Time between the driver's signs of life; 0 or less: none (tests).
            silence_limit_s: Silence of the driver after which a client stops its load.
            client_silence_limit_s: Silence of a client in a level after which it is lost.
            start_limit_s: How long all clients together may take to come up.
        """
        self._asked = num_clients
        self._runtime = runtime
        self._rules = rules or PlacementRules()
        self._trust_env = trust_env
        self._ping_interval_s = ping_interval_s
        self._silence_limit_s = silence_limit_s
        self._client_silence_limit_s = client_silence_limit_s
        self._start_limit_s = start_limit_s
        self._actors: list[Any] = []
        self._hosts: list[HostInfo] = []
        self._lost: dict[int, str] = {}
        self._offsets: list[ClockOffset] = []
        self._pings: dict[int, Any] = {}
        self._pinger: Pinger | None = None
        self._epoch_monotonic_ns = 0

    @property
    def num_clients(self) -> int:
        """Clients started; before start(): asked for."""
        return len(self._actors) or self._asked

    def start(self) -> Sequence[HostInfo]:
        """
        Place and start the clients.

        Raises:
            PlacementError: fewer places than asked; ClientStartTimeout: a client does not come up; FleetError: Ray does not.
        """
        self._runtime.start()
        for client, node in enumerate(self._places()):
            self._actors.append(self._make_actor(client, node))
        try:
            self._hosts = self._get_all([actor.info.remote() for actor in self._actors], self._start_limit_s)
        except GetTimeoutError:
            raise ClientStartTimeout(
                f"not all of {len(self._actors)} clients came up within {self._start_limit_s:g} s; is the cluster busy?"
            ) from None
        self._offsets = [SAME_CLOCK] * len(self._actors)
        if self._ping_interval_s > 0:
            self._pinger = Pinger(self._ping_all, self._ping_interval_s)
            self._pinger.start()
        return list(self._hosts)

    def setup(self, setup: FleetSetup) -> Sequence[ProbeResult]:
        """
        Tell every client; results of all clients and targets.

        Raises:
            FleetError: a client does not answer in time.
        """
        self._epoch_monotonic_ns = setup.epoch_monotonic_ns
        workload = ray.put(setup.workload)
        refs = [
            actor.setup.remote(
                targets=setup.targets,
                target_names=setup.target_names,
                request=setup.request,
                http_client=setup.http_client,
                workload=workload,
            )
            for actor in self._actors
        ]
        try:
            return [result for results in self._get_all(refs, _SETUP_LIMIT_S) for result in results]
        except GetTimeoutError:
            raise FleetError(f"not all clients have tried the targets within {_SETUP_LIMIT_S:g} s") from None

    def measure_clocks(self) -> Sequence[ClockOffset]:
        """
        Return each client's clock offset, measured now; a lost client keeps its last one.

        Raises:
            FleetError: a client does not answer.
        """
        own_clock = clock_identity()
        for client, host in enumerate(self._hosts):
            if client not in self._lost:
                same = host.clock_identity == own_clock
                self._offsets[client] = SAME_CLOCK if same else self._measure_clock(client)
        return list(self._offsets)

    def start_level(self, spec: LevelSpec, *, lead_s: float = 1.0) -> RayLevelRun:
        """
        Order a level on all live clients.

        Raises:
            FleetError: no client is left.
        """
        clients = [client for client in range(len(self._actors)) if client not in self._lost]
        if not clients:
            raise FleetError("no client is left to take a level")
        start_ns = time.monotonic_ns() + s_to_ns(start_lead_s(spec, len(clients), lead_s))
        streams = {}
        for position, client in enumerate(clients):
            offset = self._offsets[client]
            order = LevelStart(
                spec=spec,
                position=position,
                num_clients=len(clients),
                epoch_ns=offset.to_remote_ns(self._epoch_monotonic_ns),
                start_ns=offset.to_remote_ns(start_ns),
            )
            run_level = self._actors[client].run_level.options(
                num_returns="streaming", _generator_backpressure_num_objects=_UNTAKEN_ITEMS
            )
            streams[client] = run_level.remote(order)
        return RayLevelRun(
            streams,
            dict(enumerate(self._actors)),
            start_ns=start_ns,
            on_lost=self._lose,
            silence_limit_s=self._client_silence_limit_s,
        )

    def alive(self) -> Sequence[bool]:
        """Return whether each client can take another level."""
        return [client not in self._lost for client in range(len(self._actors))]

    def close(self) -> None:
        """End all clients, within a limit."""
        if self._pinger is not None:
            self._pinger.close()
            self._pinger = None
        if not ray.is_initialized():
            return
        refs = [actor.close.remote() for client, actor in enumerate(self._actors) if client not in self._lost]
        if refs:
            ray.wait(refs, num_returns=len(refs), timeout=_CLOSE_LIMIT_S, fetch_local=False)
        for actor in self._actors:
            ray.kill(actor, no_restart=True)
        self._actors = []

    def _places(self) -> list[Node]:
        deadline_s = time.monotonic() + _PLACES_LIMIT_S
        nodes = self._runtime.nodes()
        while is_settling(self._asked, nodes, self._rules) and time.monotonic() < deadline_s:
            time.sleep(_PLACES_POLL_S)
            nodes = self._runtime.nodes()
        return place(self._asked, nodes, self._rules)

    def _make_actor(self, client: int, node: Node) -> Any:
        wrapped: Any = ray.remote(LoadClientActor)
        return wrapped.options(
            num_cpus=1,
            # A retry would send the load twice.
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node.node_id, soft=False),
        ).remote(client, trust_env=self._trust_env, silence_limit_s=self._silence_limit_s)

    def _get_all(self, refs: list[Any], limit_s: float) -> list[Any]:
        try:
            return list(ray.get(refs, timeout=limit_s))
        except GetTimeoutError:
            raise
        except RayError as error:
            raise FleetError(f"a client failed: {first_line(error)}") from error

    def _measure_clock(self, client: int) -> ClockOffset:
        actor = self._actors[client]
        samples = []
        try:
            for _ in range(_ROUND_TRIPS):
                before_ns = time.monotonic_ns()
                remote_ns = ray.get(actor.ping.remote(), timeout=_PING_LIMIT_S)
                samples.append((before_ns, remote_ns, time.monotonic_ns()))
        except RayError as error:
            raise FleetError(f"client {client} does not answer pings: {first_line(error)}") from error
        return estimate_offset(samples)

    def _ping_all(self) -> None:
        """Send a ping to every live client; one whose last ping is unanswered gets another, none is waited for."""
        for client, actor in enumerate(self._actors):
            if client not in self._lost:
                with contextlib.suppress(RayError):
                    self._pings[client] = actor.ping.remote()

    def _lose(self, client: int, reason: str) -> None:
        self._lost[client] = reason
        self._pings.pop(client, None)
        # Whatever it still does, it is no longer part of the run: its load must not go on.
        ray.kill(self._actors[client], no_restart=True)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text that says something."""
    for line in str(error).splitlines():
        if line.strip():
            return line.strip()[:300]
    return type(error).__name__
