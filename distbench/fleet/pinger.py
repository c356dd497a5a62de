"""The driver's sign of life to its clients (floor F4)."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Pinger:
    """
    Calls a function once per interval from a thread of its own, so that a driver busy with files still counts as alive.

    The function must not block.
    """

    def __init__(self, ping: Callable[[], None], interval_s: float) -> None:
        self._ping = ping
        self._interval_s = interval_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="distbench-pinger", daemon=True)

    def start(self) -> None:
        """Begin with a first call at once."""
        self._thread.start()

    def close(self) -> None:
        """Call no more; a second call does nothing."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(self._interval_s + 5.0)

    def _run(self) -> None:
        while True:
            self._ping()
            if self._stop.wait(self._interval_s):
                return
