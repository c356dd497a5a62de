"""
What an experiment tells while it runs (floor F4); the command line draws it. Nothing here decides anything.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol

from distbench.core.levels import LevelSpec


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LevelProgress:
    """
    The state of a level, summed over all clients. Requests are measured ones.

    Attributes:
        asked: Connections asked; connected, in_flight: held now.
        planned: Requests; None where only the duration ends the level.
        warmup_done, warmup_planned: Warm-up requests.
        sent, ok, failed, cut, dropped: Requests so far.
        output_tokens_per_s: Over the last seconds; None at first.
        elapsed_s: Since the start order was due.
        remaining_s: Estimate; None where nothing is known yet.
        running, waiting: At the server, last scrape; None: not exported.
        lost_clients: Clients that died in this level.
        last_error: Latest failure; None.
    """

    asked: int
    connected: int
    in_flight: int
    planned: int | None
    warmup_done: int
    warmup_planned: int
    sent: int
    ok: int
    failed: int
    cut: int
    dropped: int
    output_tokens_per_s: float | None
    elapsed_s: float
    remaining_s: float | None
    running: float | None
    waiting: float | None
    lost_clients: int
    last_error: str | None


class Observer(Protocol):
    """Gets told; must return quickly and never raise."""

    def stage(self, text: str) -> None:
        """Say what is being done now, such as "starting 2 clients"."""
        ...

    def note(self, text: str) -> None:
        """Say something that the user must see, in one sentence."""
        ...

    def tell(self, text: str) -> None:
        """Say something about what is going to be measured, in one line."""
        ...

    def outlook(self, text: str) -> None:
        """Say why the next level is measured and how long the rest may take."""
        ...

    def level_started(self, spec: LevelSpec) -> None:
        """Say that a level begins."""
        ...

    def progress(self, state: LevelProgress) -> None:
        """Show the state of the level, about twice per second."""
        ...

    def level_done(self, row: Mapping[str, Any]) -> None:
        """Show a finished level: a row of levels.parquet."""
        ...


class SilentObserver:
    """An observer that shows nothing."""

    def stage(self, text: str) -> None:
        """Ignore it."""

    def note(self, text: str) -> None:
        """Ignore it."""

    def tell(self, text: str) -> None:
        """Ignore it."""

    def outlook(self, text: str) -> None:
        """Ignore it."""

    def level_started(self, spec: LevelSpec) -> None:
        """Ignore it."""

    def progress(self, state: LevelProgress) -> None:
        """Ignore it."""

    def level_done(self, row: Mapping[str, Any]) -> None:
        """Ignore it."""
