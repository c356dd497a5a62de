"""
What is done in the idle moments of the loop (floor F3): building requests ahead, reading finished answers.

Both are sliced: after each slice the loop looks at its sockets, so that a thousand streams which end together delay no other read
by more than a slice.
"""

from __future__ import annotations

import asyncio
from time import monotonic_ns

from distbench.client.finishing import Finisher
from distbench.client.work import Source

_SLICE_NS = 500_000
_LONG_SLICE_NS = 4_000_000


class Background:
    """Runs the source's preparations and the finisher's reading, a slice at a time, preparations first."""

    def __init__(self, source: Source, finisher: Finisher, wanted: asyncio.Event) -> None:
        """
        Prepare.

        Args:
            source: Builds ahead.
            finisher: Reads answers.
            wanted: Set by whoever has something to do here.
        """
        self._source = source
        self._finisher = finisher
        self._wanted = wanted
        self._wanted.set()
        self._is_ending = False

    async def run(self) -> None:
        """Work until end() was called and nothing is left to read."""
        while True:
            is_urgent = self._is_ending or self._finisher.is_behind
            slice_ns = _LONG_SLICE_NS if is_urgent else _SLICE_NS
            until_ns = monotonic_ns() + slice_ns
            is_building = not self._is_ending and self._source.prepare(until_ns)
            is_reading = self._finisher.step(until_ns)
            if is_building or is_reading:
                await asyncio.sleep(0)
            elif self._is_ending:
                return
            else:
                self._wanted.clear()
                await self._wanted.wait()

    def end(self) -> None:
        """Prepare nothing more; run() returns when all answers are read."""
        self._is_ending = True
        self._wanted.set()
