"""
The simulator in virtual time: hours of load in a moment, exact to the nanosecond (floor F3, pure).

For tests and for looking at what a setting does; no sockets, no clients, no waiting.
"""

from __future__ import annotations

import dataclasses
import heapq
import zlib
from collections.abc import Sequence
from typing import Literal

from distbench.sim.answers import Answer
from distbench.sim.engine import EngineCore
from distbench.sim.scheduler import SimRequest, least_loaded
from distbench.sim.settings import SimSettings
from distbench.units import NS_PER_S


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """
    One request of a virtual load.

    Attributes:
        prompt: Token ids.
        output_tokens: Length of the answer; it ends by length.
        arrival_ns: When it comes; ignored in closed loop.
    """

    prompt: tuple[int, ...]
    output_tokens: int
    arrival_ns: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """
    What became of a request; ns since the start.

    Attributes:
        index: Position in the load.
        engine: Index of the engine that served it.
        arrival_ns: When it came (closed loop: when its connection was free).
        token_ns: When each of its tokens was made.
        cached_tokens: Prompt tokens that the prefix cache gave.
        num_preemptions: Times it was preempted.
    """

    index: int
    engine: int
    arrival_ns: int
    token_ns: tuple[int, ...]
    cached_tokens: int
    num_preemptions: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """
    Outcome of a virtual run.

    Attributes:
        served: In the order of the load.
        engines: The engines with their counters.
        end_ns: End of the last step.
    """

    served: tuple[Served, ...]
    engines: tuple[EngineCore, ...]
    end_ns: int

    def tokens_per_s(self, start_ns: int = 0, stop_ns: int | None = None) -> float:
        """Return tokens made per second in (start_ns, stop_ns]; by default over the whole run."""
        stop = self.end_ns if stop_ns is None else stop_ns
        num_tokens = sum(start_ns < made <= stop for request in self.served for made in request.token_ns)
        return num_tokens * NS_PER_S / (stop - start_ns)


def simulate(settings: SimSettings, load: Sequence[Arrival], *, connections: int | None = None) -> Simulation:
    """
    Serve a load in virtual time.

    Args:
        settings: The server; faults and the HTTP side do not matter here.
        load: The requests.
        connections: Closed loop with this many: each sends the next request of the load when its last one ended. None: the
            requests come at their own times.

    Returns:
        The outcome; every request is served.
    """
    return _Run(settings, load, connections).run()


class _Run:
    """The event queue of one simulation; events are (ns, order, kind, number)."""

    def __init__(self, settings: SimSettings, load: Sequence[Arrival], connections: int | None) -> None:
        self._settings = settings
        self._load = load
        self._closed = connections is not None
        self._engines = tuple(EngineCore(settings, index) for index in range(settings.data_parallel_size))
        self._busy = [False] * len(self._engines)
        self._events: list[tuple[int, int, Literal["arrival", "step"], int]] = []
        self._order = 0
        self._next = len(load) if connections is None else min(connections, len(load))
        self._requests: dict[int, SimRequest] = {}
        self._engine_of: dict[int, int] = {}
        self._token_ns: list[list[int]] = [[] for _ in load]
        for index in range(self._next):
            self._push(0 if self._closed else load[index].arrival_ns, "arrival", index)

    def run(self) -> Simulation:
        now_ns = 0
        while self._events:
            now_ns = self._events[0][0]
            # All that happens at one instant happens before an idle engine plans its next step.
            while self._events and self._events[0][0] == now_ns:
                _, _, kind, number = heapq.heappop(self._events)
                if kind == "arrival":
                    self._arrive(number, now_ns)
                else:
                    self._finish_step(number, now_ns)
            for index, engine in enumerate(self._engines):
                if not self._busy[index] and engine.scheduler.num_unfinished:
                    self._begin_step(index, now_ns)
        return self._result(now_ns)

    def _push(self, when_ns: int, kind: Literal["arrival", "step"], number: int) -> None:
        heapq.heappush(self._events, (when_ns, self._order, kind, number))
        self._order += 1

    def _arrive(self, index: int, now_ns: int) -> None:
        item = self._load[index]
        request = SimRequest(
            request_id=str(index),
            tokens=list(item.prompt),
            num_prompt_tokens=len(item.prompt),
            num_output_target=item.output_tokens,
            source=Answer(zlib.crc32(b"%d/%d" % (self._settings.seed, index)), self._settings.vocab_size),
            owner=index,
            max_tokens=item.output_tokens,
        )
        engine = least_loaded([e.scheduler for e in self._engines])
        self._requests[index] = request
        self._engine_of[index] = engine
        self._engines[engine].add(request, now_ns)

    def _begin_step(self, engine: int, now_ns: int) -> None:
        duration_ns = self._engines[engine].begin_step(now_ns)
        if duration_ns is None:
            raise AssertionError("an engine with requests has something to compute")
        self._busy[engine] = True
        self._push(now_ns + duration_ns, "step", engine)

    def _finish_step(self, engine: int, now_ns: int) -> None:
        self._busy[engine] = False
        for request in self._engines[engine].finish_step(now_ns):
            self._token_ns[request.owner].append(now_ns)
            if request.finish_reason is not None and self._closed and self._next < len(self._load):
                self._push(now_ns, "arrival", self._next)
                self._next += 1

    def _result(self, end_ns: int) -> Simulation:
        served = tuple(
            Served(
                index=index,
                engine=self._engine_of[index],
                arrival_ns=self._requests[index].arrival_ns,
                token_ns=tuple(self._token_ns[index]),
                cached_tokens=self._requests[index].num_cached_tokens or 0,
                num_preemptions=self._requests[index].num_preemptions,
            )
            for index in range(len(self._load))
        )
        return Simulation(served=served, engines=self._engines, end_ns=end_ns)
