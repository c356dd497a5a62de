"""Servers for the tests of the simulator: in a thread of the test process, on an ephemeral port."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import uvloop

from distbench.sim.server import SimServer
from distbench.sim.settings import SimSettings
from distbench.sim.step_time import StepTimeSettings

FAST = StepTimeSettings(
    fixed_s=0.001, weights_s=0.0, per_sequence_s=0.0, per_prefill_token_s=0.0, per_kv_token_s=0.0
)

ServerFactory = Callable[..., SimServer]


class ServerThread:
    """A server and its event loop in a thread."""

    def __init__(self, settings: SimSettings) -> None:
        self._settings = settings
        self._ready = threading.Event()
        self._loop = uvloop.new_event_loop()
        self._stop: asyncio.Event
        self._thread = threading.Thread(target=self._main, daemon=True)
        self.server: SimServer

    def start(self) -> SimServer:
        """Return the server once it listens."""
        self._thread.start()
        assert self._ready.wait(10), "the server did not start"
        return self.server

    def stop(self) -> None:
        """End the server and its thread."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)
        assert not self._thread.is_alive(), "the server did not end"

    def _main(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        async with SimServer(self._settings) as self.server:
            self._ready.set()
            await self._stop.wait()


def chat(**fields: Any) -> dict[str, Any]:
    """Build a chat request of 14 prompt tokens."""
    messages = [{"role": "user", "content": "Write a function that sorts a list."}]
    return {"model": "tiny", "messages": messages, "max_tokens": 3, "ignore_eos": True, **fields}


def events(text: str) -> list[Any]:
    """Return the JSON of a stream's events; "[DONE]" stays a string."""
    parts = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    return [part if part == "[DONE]" else json.loads(part) for part in parts]


def samples(url: str) -> dict[str, float]:
    """Return the server's metrics, keyed as they are written."""
    lines = get(f"{url}/metrics").text.splitlines()
    return {
        name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")
    }


def engine_sum(url: str, name: str) -> float:
    """Return a metric summed over the engines."""
    return sum(value for key, value in samples(url).items() if key.startswith(f"vllm:{name}{{"))


def eventually(condition: Callable[[], bool], limit_s: float = 5.0) -> bool:
    """Wait until a condition holds."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def get(url: str, **options: Any) -> httpx.Response:
    """GET on a connection of its own; no certificates are loaded, which would take most of a test's time."""
    with httpx.Client(verify=False, trust_env=False) as client:
        return client.get(url, **options)


def post(url: str, **options: Any) -> httpx.Response:
    """POST on a connection of its own."""
    with httpx.Client(verify=False, trust_env=False) as client:
        return client.post(url, **options)
