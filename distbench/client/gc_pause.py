"""The garbage collector kept off the hot path (floor F3)."""

from __future__ import annotations

import gc
import threading


class GcPause:
    """
    Turns the collector off while at least one level runs, and collects when the last one has ended.

    What exists at the start is frozen: a later collection need not walk it. Clients that share a process share one pause.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holders = 0
        self._was_enabled = True

    def __enter__(self) -> None:
        """Turn it off, unless another level of this process already did."""
        with self._lock:
            self._holders += 1
            if self._holders == 1:
                self._was_enabled = gc.isenabled()
                # No collection here: it would hold the loop up just before the start.
                gc.freeze()
                gc.disable()

    def __exit__(self, *exc_info: object) -> None:
        """Turn it on again and collect, unless another level of this process still runs."""
        with self._lock:
            self._holders -= 1
            if self._holders == 0:
                gc.unfreeze()
                if self._was_enabled:
                    gc.enable()
                gc.collect()

    def relieve(self) -> None:
        """Collect the garbage of a long level in between: cycles of failed requests would pile up otherwise."""
        gc.collect(1)
