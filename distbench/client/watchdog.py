"""The driver's sign of life, as a client sees it (floor F3)."""

from __future__ import annotations

from time import monotonic_ns

from distbench.units import s_to_ns

DEFAULT_SILENCE_LIMIT_S = 8.0


class Watchdog:
    """
    Tells when the driver has fallen silent. It is off until the first touch(): who never pings is not missed.

    A client that is cut off from its driver would load the server for ever.
    """

    def __init__(self, limit_s: float = DEFAULT_SILENCE_LIMIT_S) -> None:
        """
        Begin, off.

        Args:
            limit_s: Silence after which the load stops.
        """
        self._limit_ns = s_to_ns(limit_s)
        self._heard_ns: int | None = None

    def touch(self) -> None:
        """Note a sign of life; from any thread."""
        self._heard_ns = monotonic_ns()

    def is_silent(self, now_ns: int) -> bool:
        """Tell whether the last sign of life is longer ago than the limit."""
        return self._heard_ns is not None and now_ns - self._heard_ns > self._limit_ns
