"""
The actor around one load client (floor F4): a plain class, wrapped by ray.remote only where actors are made (ray_fleet.py).

Its methods run on the actor's own event loop; the load has a thread and a loop of its own, so that neither waits for the other.
Secrets come in method arguments small enough to travel inside the call: never in the constructor's arguments, which Ray keeps in
the head's tables, nor in its object store.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from time import monotonic_ns
from typing import Any, cast

import ray

from distbench.client.client import LoadClient
from distbench.client.messages import (
    ClientEvent,
    ClientSetup,
    Finished,
    HostInfo,
    LevelStart,
    ProbeResult,
    RequestSettings,
)
from distbench.core.prompts import Workload
from distbench.wire.base import WireTarget

_EVENT_WAIT_S = 0.5


class LoadClientActor:
    """One client in a process of its own."""

    def __init__(self, client: int, *, trust_env: bool, silence_limit_s: float) -> None:
        """
        Start the client.

        Args:
            client: Index.
            trust_env: Whether proxy variables are obeyed.
            silence_limit_s: How long after the driver's last ping a level stops by itself.
        """
        self._client = LoadClient(client, trust_env=trust_env, silence_limit_s=silence_limit_s)
        self._client.start()

    async def info(self) -> HostInfo:
        """Describe this process and its machine."""
        context = ray.get_runtime_context()
        return await asyncio.to_thread(
            self._client.info,
            node_id=context.get_node_id(),
            address=cast(Any, ray.util).get_node_ip_address(),
            ray=ray.__version__,
        )

    async def ping(self) -> int:
        """Take a sign of life of the driver; return this process' CLOCK_MONOTONIC in ns."""
        now_ns = monotonic_ns()
        self._client.touch()
        return now_ns

    async def setup(
        self,
        *,
        targets: tuple[WireTarget, ...],
        target_names: tuple[str, ...],
        request: RequestSettings,
        http_client: str,
        workload: Workload,
    ) -> list[ProbeResult]:
        """Take the run's setup, try the targets. The workload, which may be large, is an argument of its own: Ray shares it."""
        setup = ClientSetup(
            client=self._client.client,
            targets=targets,
            target_names=target_names,
            request=request,
            workload=workload,
            http_client=http_client,
        )
        return await asyncio.to_thread(self._client.setup, setup)

    async def run_level(self, order: LevelStart) -> AsyncIterator[list[ClientEvent]]:
        """Run a level; yield its events as they come, Finished last. Cancelled or closed, it stops the load."""
        handle = self._client.start_level(order)
        try:
            while True:
                events = await asyncio.to_thread(handle.events, _EVENT_WAIT_S)
                if events:
                    yield events
                    if isinstance(events[-1], Finished):
                        return
        finally:
            self._client.stop()

    async def stop(self) -> None:
        """Cut the level under way and let it report."""
        self._client.stop()

    async def close(self) -> None:
        """End the client."""
        await asyncio.to_thread(self._client.close)
