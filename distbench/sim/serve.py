"""
The simulated server as the whole work of a process (floor F3).
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import resource
import signal
import ssl
from collections.abc import Callable, Sequence

import uvloop

from distbench.sim.server import SimServer
from distbench.sim.settings import SimSettings


def serve(
    settings: SimSettings,
    host: str = "127.0.0.1",
    port: int = 8000,
    *,
    ssl_context: ssl.SSLContext | None = None,
    on_ready: Callable[[SimServer], None] | None = None,
    stop_signals: Sequence[signal.Signals] = (signal.SIGTERM, signal.SIGINT),
    stop_when_readable_fd: int | None = None,
) -> None:
    """
    Serve until a signal comes; blocks, prints nothing.

    Args:
        settings: The server's parameters.
        host: Address of an interface.
        port: 0: any free one.
        ssl_context: Serve TLS with it.
        on_ready: Called once it listens; the server's ``url`` and ``port`` are set.
        stop_signals: Signals that end it; must be called in the main thread unless empty.
        stop_when_readable_fd: End also when this descriptor gets readable or is closed on the other side.

    Raises:
        OSError: The address is taken or the truth log cannot be written.
    """
    _raise_file_limit()
    with contextlib.closing(uvloop.new_event_loop()) as loop:
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(
                _serve(settings, host, port, ssl_context, on_ready, stop_signals, stop_when_readable_fd)
            )
        finally:
            asyncio.set_event_loop(None)


async def _serve(
    settings: SimSettings,
    host: str,
    port: int,
    ssl_context: ssl.SSLContext | None,
    on_ready: Callable[[SimServer], None] | None,
    stop_signals: Sequence[signal.Signals],
    stop_when_readable_fd: int | None,
) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in stop_signals:
        loop.add_signal_handler(number, stop.set)
    if stop_when_readable_fd is not None:
        loop.add_reader(stop_when_readable_fd, stop.set)
    server = await SimServer(settings).start(host, port, ssl_context=ssl_context)
    # What exists now lives as long as the process: the collector need not look at it again while clients are timed.
    gc.collect()
    gc.freeze()
    try:
        if on_ready is not None:
            on_ready(server)
        await stop.wait()
    finally:
        if stop_when_readable_fd is not None:
            loop.remove_reader(stop_when_readable_fd)
        await server.close()


def _raise_file_limit() -> None:
    """Let as many connections in as the system allows; each is a file."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
