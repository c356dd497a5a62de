"""
The load client: one process' worth of load, driven from outside by a few thread-safe calls (floor F3).

The load runs on an event loop in a thread of its own; whoever drives the client (a thread of the driver, an actor of Ray) lives on
other threads, and neither waits for the other. This package knows nothing of Ray.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import threading
from collections.abc import Coroutine
from time import monotonic_ns
from typing import Any, TypeVar

from distbench.client.connections import connection_to
from distbench.client.gc_pause import GcPause
from distbench.client.hostinfo import host_info
from distbench.client.level import ClientLevel
from distbench.client.messages import ClientEvent, ClientSetup, HostInfo, LevelStart, ProbeResult
from distbench.client.outbox import Outbox
from distbench.client.warmup import warm_up
from distbench.client.watchdog import DEFAULT_SILENCE_LIMIT_S, Watchdog
from distbench.errors import FleetError
from distbench.units import ns_to_s

_T = TypeVar("_T")
_START_LIMIT_S = 30.0
_CLOSE_LIMIT_S = 10.0
_PROBE_SPARE_S = 15.0


class LevelHandle:
    """A level under way on one client; its events can be taken by one other thread."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox

    def events(self, timeout_s: float) -> list[ClientEvent]:
        """
        Return the events there are, waiting up to timeout_s for the first; Finished is the last one of a level.

        Raises:
            BaseException: the client itself failed; the events before were returned.
        """
        return self._outbox.get(timeout_s)

    @property
    def finished(self) -> bool:
        """True once the last event was taken."""
        return self._outbox.drained


class LoadClient:
    """
    One client. start(), setup(), any number of levels one after the other, close(); every method may be called from any thread.
    """

    def __init__(
        self,
        client: int = 0,
        *,
        trust_env: bool = False,
        silence_limit_s: float = DEFAULT_SILENCE_LIMIT_S,
        gc_pause: GcPause | None = None,
    ) -> None:
        """
        Prepare; nothing runs before start().

        Args:
            client: Index of the client.
            trust_env: Whether proxy variables are obeyed, for HostInfo.
            silence_limit_s: How long after the last touch() a level stops by itself; without any touch() it does not.
            gc_pause: Shared by the clients of one process; None: an own one.
        """
        self.client = client
        self._trust_env = trust_env
        self._watchdog = Watchdog(silence_limit_s)
        self._gc_pause = gc_pause or GcPause()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._is_uvloop = False
        self._setup: ClientSetup | None = None
        self._runner: ClientLevel | None = None

    def start(self) -> None:
        """
        Start the thread and its loop; a second call does nothing.

        Raises:
            FleetError: the thread does not come up.
        """
        if self._thread is not None:
            return
        warm_up()
        started = threading.Event()
        self._thread = threading.Thread(
            target=self._run_loop, args=(started,), name=f"distbench-load-{self.client}", daemon=True
        )
        self._thread.start()
        if not started.wait(_START_LIMIT_S):
            raise FleetError(f"client {self.client}: its load thread does not start")

    def info(self, *, node_id: str = "", address: str = "", ray: str = "") -> HostInfo:
        """Describe this process and its machine; the arguments are what only the fleet knows (see HostInfo)."""
        return host_info(
            self.client,
            trust_env=self._trust_env,
            uvloop=self._is_uvloop,
            node_id=node_id,
            address=address,
            ray=ray,
        )

    def setup(self, setup: ClientSetup) -> list[ProbeResult]:
        """
        Take the run's setup and try every target once: TCP and TLS, no request.

        Raises:
            FleetError: the probe does not end within its limits.
        """
        self._setup = setup
        limits = [target.timeouts.connect_s or _PROBE_SPARE_S for target in setup.targets]
        return self._call(_probe_all(setup), max(limits, default=0.0) + _PROBE_SPARE_S)

    def start_level(self, order: LevelStart) -> LevelHandle:
        """
        Begin a level; it connects now and sends from order.start_ns on.

        Raises:
            FleetError: no setup yet, or the level before has not ended.
        """
        if self._setup is None or self._loop is None:
            raise FleetError(f"client {self.client}: a level was ordered before its setup")
        if self._runner is not None:
            raise FleetError(f"client {self.client}: a level was ordered while another runs")
        outbox = Outbox()
        runner = ClientLevel(
            self._setup, order, outbox=outbox, gc_pause=self._gc_pause, watchdog=self._watchdog
        )
        self._runner = runner
        asyncio.run_coroutine_threadsafe(self._run_level(runner, outbox), self._loop)
        return LevelHandle(outbox)

    def stop(self) -> None:
        """Cut the level under way and let it report; returns at once."""
        runner, loop = self._runner, self._loop
        if runner is not None and loop is not None:
            with contextlib.suppress(RuntimeError):  # closed meanwhile
                loop.call_soon_threadsafe(runner.stop, "stopped")

    def touch(self) -> None:
        """Note a sign of life of the driver; from the first one on, a level stops by itself when they cease."""
        self._watchdog.touch()

    def close(self) -> None:
        """Stop everything and end the thread, within a limit; a second call does nothing."""
        thread, loop = self._thread, self._loop
        if thread is None or loop is None:
            return
        self._thread = None
        self.stop()
        with contextlib.suppress(RuntimeError):
            asyncio.run_coroutine_threadsafe(self._shut_down(), loop)
        thread.join(_CLOSE_LIMIT_S)

    def _run_loop(self, started: threading.Event) -> None:
        self._loop, self._is_uvloop = _new_loop()
        asyncio.set_event_loop(self._loop)
        self._loop.call_soon(started.set)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    async def _shut_down(self) -> None:
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        if others:
            await asyncio.wait(others, timeout=_CLOSE_LIMIT_S / 2)
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        asyncio.get_running_loop().stop()

    async def _run_level(self, runner: ClientLevel, outbox: Outbox) -> None:
        """Run a level; the client is free for the next one before anybody can learn that this one has finished."""
        try:
            finished = await runner.run()
        except BaseException as failure:
            self._runner = None
            outbox.fail(failure)
            raise
        self._runner = None
        outbox.put(finished)

    def _call(self, coroutine: Coroutine[Any, Any, _T], limit_s: float) -> _T:
        if self._loop is None:
            coroutine.close()
            raise FleetError(f"client {self.client}: not started")
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result(limit_s)
        except concurrent.futures.TimeoutError:
            future.cancel()
            raise FleetError(f"client {self.client}: no answer within {limit_s:g} s") from None


def _new_loop() -> tuple[asyncio.AbstractEventLoop, bool]:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop(), False
    return uvloop.new_event_loop(), True


async def _probe_all(setup: ClientSetup) -> list[ProbeResult]:
    return list(await asyncio.gather(*(_probe(setup, number) for number in range(len(setup.targets)))))


async def _probe(setup: ClientSetup, number: int) -> ProbeResult:
    # Always by the connection that can connect without a request; the other would find everything well.
    connection = connection_to(dataclasses.replace(setup, http_client="fast"), number)
    began_ns = monotonic_ns()
    failure = await connection.connect()
    connect_s = ns_to_s(monotonic_ns() - began_ns)
    await connection.close()
    return ProbeResult(
        client=setup.client,
        target=setup.target_names[number],
        connect_s=connect_s if failure is None else None,
        error=None if failure is None else (failure.error_text or "cannot connect"),
    )
