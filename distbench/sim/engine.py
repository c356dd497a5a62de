"""
Engines: a scheduler, a step clock and the counters, driven by real or virtual time (floor F3).

``EngineCore`` is pure: it is told what time it is. ``EngineLoop`` drives one by an event loop, ``distbench.sim.virtual`` by numbers.
A step's deadline is the deadline of the step before plus its duration, so that a late timer shifts one step and not the pace.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from distbench.sim.kv_cache import KvCache
from distbench.sim.metrics import EngineMetrics
from distbench.sim.scheduler import Scheduler, SimRequest, Step
from distbench.sim.settings import SimSettings
from distbench.sim.step_time import StepClock
from distbench.units import NS_PER_S


class EngineCore:
    """
    One engine without a clock.

    Args:
        settings: The server's parameters.
        index: Its number among the data-parallel engines; gives it a noise of its own.
    """

    def __init__(self, settings: SimSettings, index: int = 0) -> None:
        self.index = index
        self.kv_cache = KvCache(
            settings.num_blocks, settings.block_size, prefix_caching=settings.enable_prefix_caching
        )
        self.scheduler = Scheduler(
            self.kv_cache,
            max_num_seqs=settings.max_num_seqs,
            max_num_batched_tokens=settings.max_num_batched_tokens,
        )
        self.metrics = EngineMetrics(self.scheduler.counters, settings.max_model_len)
        self._step_clock = StepClock(
            settings.step_time,
            tensor_parallel_size=settings.tensor_parallel_size,
            seed=settings.seed * 1_000_003 + index,
        )
        self._step: Step | None = None
        self._pending_aborts: list[SimRequest] = []

    def add(self, request: SimRequest, now_ns: int) -> None:
        """Queue a request that arrived now."""
        request.arrival_ns = now_ns
        self.scheduler.add(request)

    def abort(self, request: SimRequest) -> None:
        """
        Drop a request.

        While a step is under way it takes effect at its end, as in vLLM: the step's token is still made and counted.
        """
        if self._step is None:
            self._abort_now(request)
        else:
            self._pending_aborts.append(request)

    def begin_step(self, now_ns: int) -> int | None:
        """
        Start a step.

        Returns:
            Its length in ns; None when there is nothing to compute.
        """
        step = self.scheduler.schedule()
        if not step.scheduled:
            self._update_gauges()
            return None
        for request in step.admitted:
            if request.scheduled_ns is None:
                request.scheduled_ns = now_ns
        self._step = step
        return self._step_clock.duration_ns(step, self.scheduler.num_unfinished)

    def finish_step(self, now_ns: int) -> list[SimRequest]:
        """End the step under way; return the requests that got a token, ended ones with their reason."""
        step = self._step
        if step is None:
            raise RuntimeError("no step is under way")
        self._step = None
        produced = self.scheduler.complete(step)
        self.metrics.record_step(step, produced, now_ns)
        for request in self._pending_aborts:
            self._abort_now(request)
        self._pending_aborts.clear()
        self._update_gauges()
        return produced

    def _abort_now(self, request: SimRequest) -> None:
        if self.scheduler.abort(request) and not self.scheduler.num_unfinished:
            self._update_gauges()

    def _update_gauges(self) -> None:
        gauges = self.metrics.gauges
        gauges.running = len(self.scheduler.running)
        gauges.waiting = len(self.scheduler.waiting)
        gauges.kv_usage_ratio = self.kv_cache.usage_ratio


class EngineLoop:
    """
    Runs an engine in real time on an event loop.

    Args:
        core: The engine.
        loop: Runs the timers.
        monotonic_ns: The clock.
        on_tokens: Called at the end of each step with the requests that got a token.
    """

    # A process that was stopped or starved longer than this does not race through the steps it missed.
    MAX_LAG_NS = NS_PER_S // 4

    def __init__(
        self,
        core: EngineCore,
        loop: asyncio.AbstractEventLoop,
        monotonic_ns: Callable[[], int],
        on_tokens: Callable[[list[SimRequest]], None],
    ) -> None:
        self.core = core
        self.num_slips = 0
        self.max_lag_ns = 0
        self._loop = loop
        self._monotonic_ns = monotonic_ns
        self._on_tokens = on_tokens
        self._deadline_ns = 0
        self._timer: asyncio.Handle | None = None

    def submit(self, request: SimRequest) -> None:
        """Queue a request; an idle engine starts after the callbacks that are ready now, so that a burst is admitted together."""
        self.core.add(request, self._monotonic_ns())
        if self._timer is None:
            self._timer = self._loop.call_soon(self._start)

    def abort(self, request: SimRequest) -> None:
        """Drop a request."""
        self.core.abort(request)

    def close(self) -> None:
        """Stop the clock; requests stay where they are."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start(self) -> None:
        self._timer = None
        now_ns = self._monotonic_ns()
        self._begin(now_ns, now_ns)

    def _begin(self, base_ns: int, now_ns: int) -> None:
        duration_ns = self.core.begin_step(now_ns)
        if duration_ns is None:
            return
        self._deadline_ns = base_ns + duration_ns
        delay_s = max(self._deadline_ns - self._monotonic_ns(), 0) / NS_PER_S
        self._timer = self._loop.call_later(delay_s, self._end)

    def _end(self) -> None:
        self._timer = None
        now_ns = self._monotonic_ns()
        lag_ns = now_ns - self._deadline_ns
        self.max_lag_ns = max(self.max_lag_ns, lag_ns)
        base_ns = self._deadline_ns
        if lag_ns > self.MAX_LAG_NS:
            self.num_slips += 1
            base_ns = now_ns
        produced = self.core.finish_step(now_ns)
        # Tokens leave before the next step is planned: a real engine computes beside its front end.
        self._on_tokens(produced)
        self._begin(base_ns, now_ns)
