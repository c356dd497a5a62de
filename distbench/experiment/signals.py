"""Ctrl-C and SIGTERM as a flag that the level loop reads (floor F4)."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from distbench.errors import EXIT_INTERRUPTED


class StopFlag:
    """
    Set by the first Ctrl-C or SIGTERM; the run then ends in order and keeps what it measured. A third one ends the process at once.

    Ray installs a SIGTERM handler of its own in ray.init, so install() is called again after the fleet has started.
    """

    _PATIENCE = 3

    def __init__(self) -> None:
        self._event = threading.Event()
        self._count = 0
        self._previous: dict[int, Any] = {}
        self._was_interrupted = False

    def is_set(self) -> bool:
        """Return whether the user asked to stop."""
        return self._event.is_set()

    def set(self) -> None:
        """Ask to stop, from code."""
        self._event.set()

    def wait(self, timeout_s: float) -> bool:
        """Sleep up to timeout_s; return at once, True, when the user asks to stop."""
        return self._event.wait(timeout_s)

    def install(self) -> None:
        """
        Let SIGINT and SIGTERM set the flag; only the main thread may, elsewhere this does nothing.

        Raises:
            KeyboardInterrupt: one was raised since install_early() and got lost; what runs while Ray starts may swallow it.
        """
        self._take_over(self._handle)
        if self._was_interrupted:
            self._was_interrupted = False
            raise KeyboardInterrupt

    def install_early(self) -> None:
        """Let either end what comes before the load at once and in order, by KeyboardInterrupt; install() takes over later."""
        self._take_over(self._interrupt)

    def restore(self) -> None:
        """Give the signals back to whoever had them before the first install()."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()

    def _take_over(self, handler: Callable[[int, FrameType | None], None]) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous.setdefault(number, signal.signal(number, handler))

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._count += 1
        self._event.set()
        if self._count >= self._PATIENCE:
            os._exit(EXIT_INTERRUPTED)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self._was_interrupted = True
        raise KeyboardInterrupt
