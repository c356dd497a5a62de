"""
The fleet without Ray: clients as threads of this process (floor F4).

For runs where one process is enough (or Ray is not wanted) and for tests. All clients share one interpreter, so more of them add
no strength; the clocks are one clock.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from distbench.client.client import LevelHandle, LoadClient
from distbench.client.gc_pause import GcPause
from distbench.client.messages import (
    ClientEvent,
    ClientSetup,
    Finished,
    HostInfo,
    LevelStart,
    Lost,
    ProbeResult,
)
from distbench.clock import SAME_CLOCK, ClockOffset
from distbench.core.levels import LevelSpec
from distbench.errors import FleetError
from distbench.fleet.base import FleetSetup, start_lead_s
from distbench.units import s_to_ns

_POLL_S = 0.02


class LocalFleet:
    """Clients in this process, each with a thread and an event loop of its own."""

    def __init__(self, num_clients: int = 1, *, trust_env: bool = False) -> None:
        """
        Prepare; nothing runs before start().

        Args:
            num_clients: How many; >= 1.
            trust_env: Whether proxy variables are obeyed, for HostInfo.
        """
        pause = GcPause()
        self._clients = [
            LoadClient(number, trust_env=trust_env, gc_pause=pause) for number in range(num_clients)
        ]
        self._dead: dict[int, str] = {}
        self._epoch_ns = 0

    @property
    def num_clients(self) -> int:
        """Clients of the run."""
        return len(self._clients)

    def start(self) -> Sequence[HostInfo]:
        """Start the threads."""
        for client in self._clients:
            client.start()
        return [client.info() for client in self._clients]

    def setup(self, setup: FleetSetup) -> Sequence[ProbeResult]:
        """Tell every client; results of all clients and targets."""
        self._epoch_ns = setup.epoch_monotonic_ns
        return [
            result for client in self._clients for result in client.setup(_client_setup(setup, client.client))
        ]

    def measure_clocks(self) -> Sequence[ClockOffset]:
        """Return the same clock for all."""
        return [SAME_CLOCK] * len(self._clients)

    def start_level(self, spec: LevelSpec, *, lead_s: float = 1.0) -> LocalLevelRun:
        """Order a level on all live clients."""
        taking_part = [client for client in self._clients if client.client not in self._dead]
        if not taking_part:
            raise FleetError("no client is left to take a level")
        start_ns = time.monotonic_ns() + s_to_ns(start_lead_s(spec, len(taking_part), lead_s))
        handles = {
            client.client: client.start_level(
                LevelStart(
                    spec=spec,
                    position=position,
                    num_clients=len(taking_part),
                    epoch_ns=self._epoch_ns,
                    start_ns=start_ns,
                )
            )
            for position, client in enumerate(taking_part)
        }
        return LocalLevelRun(taking_part, handles, start_ns, self._dead)

    def alive(self) -> Sequence[bool]:
        """Return whether each client can take another level."""
        return [client.client not in self._dead for client in self._clients]

    def close(self) -> None:
        """End all threads."""
        for client in self._clients:
            client.close()


class LocalLevelRun:
    """A level under way on the clients of this process."""

    def __init__(
        self,
        clients: Sequence[LoadClient],
        handles: dict[int, LevelHandle],
        start_ns: int,
        dead: dict[int, str],
    ) -> None:
        self._clients = clients
        self._handles = handles
        self._dead = dead
        self.clients = tuple(handles)
        self.start_ns = start_ns

    def events(self, timeout_s: float) -> Iterator[ClientEvent]:
        """Yield the events there are, waiting up to timeout_s for the first."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            found = False
            for number in list(self._handles):
                for event in self._events_of(number):
                    found = True
                    yield event
            if found or not self._handles or time.monotonic() >= deadline_s:
                return
            # Events come a few times per second; a short sleep here costs less than a channel shared by all clients.
            time.sleep(_POLL_S)

    def _events_of(self, number: int) -> list[ClientEvent]:
        try:
            events = self._handles[number].events(0)
        except Exception as failure:  # the border of the client's thread: its fault becomes a lost client
            del self._handles[number]
            self._dead[number] = f"{type(failure).__name__}: {failure}"
            return [Lost(client=number, reason=self._dead[number])]
        if events and isinstance(events[-1], Finished):
            del self._handles[number]
        return events

    def finished(self) -> bool:
        """True once every client has had its last word."""
        return not self._handles

    def stop(self) -> None:
        """Ask all clients to cut and report."""
        for client in self._clients:
            if client.client in self._handles:
                client.stop()


def _client_setup(setup: FleetSetup, client: int) -> ClientSetup:
    return ClientSetup(
        client=client,
        targets=setup.targets,
        target_names=setup.target_names,
        request=setup.request,
        workload=setup.workload,
        http_client=setup.http_client,
    )
