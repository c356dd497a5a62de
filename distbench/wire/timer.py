"""
One timer that is armed lazily (floor F2): deadlines move with every read, the timer does not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic_ns

from distbench.units import NS_PER_S


class LazyTimer:
    """
    Wakes its owner at or before the deadline it was last told, at the cost of a comparison where that one is later.

    The owner looks at the clock when woken and tells the deadline that holds by then.
    """

    __slots__ = ("_callback", "_due_ns", "_handle")

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback
        self._handle: asyncio.TimerHandle | None = None
        self._due_ns = 0

    def wake_by(self, due_ns: int) -> None:
        """Make sure of a wake-up not later than due_ns of CLOCK_MONOTONIC (plus the loop's own grain)."""
        if self._handle is not None:
            if self._due_ns <= due_ns:
                return
            self._handle.cancel()
        delay_s = max(0.0, (due_ns - monotonic_ns()) / NS_PER_S)
        self._due_ns = due_ns
        self._handle = asyncio.get_running_loop().call_later(delay_s, self._fire)

    def cancel(self) -> None:
        """Forget any wake-up."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _fire(self) -> None:
        self._handle = None
        self._callback()
