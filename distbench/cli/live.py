"""Progress on stderr while a load runs (floor F5): a live line on a terminal, sparse plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from distbench.core.levels import LevelSpec
from distbench.experiment.observer import LevelProgress
from distbench.report.cells import rate
from distbench.report.shapes_table import shapes_table
from distbench.report.terminal import level_table

_PLAIN_INTERVAL_S = 10.0


def level_name(spec: LevelSpec) -> str:
    """Return a level in a few words."""
    again = f", repeat {spec.repeat}" if spec.repeat else ""
    packed = f", {spec.users_per_request} user messages a request" if spec.users_per_request > 1 else ""
    return f"{spec.connections} connections{again}{packed}"


def progress_text(state: LevelProgress) -> str:
    """Return the state of a level in one line."""
    done = state.ok + state.failed + state.cut + state.dropped
    planned = "" if state.planned is None else f"/{state.planned}"
    if state.warmup_done < state.warmup_planned and not state.sent:
        done_text = f"warm-up {state.warmup_done}/{state.warmup_planned}"
    else:
        done_text = f"done {done}{planned}"
    parts = [
        f"asked {state.asked}, connected {state.connected}, in flight {state.in_flight}",
        done_text,
        f"failed {state.failed}" if state.failed else "",
        f"{rate(state.output_tokens_per_s)} tokens/s" if state.output_tokens_per_s is not None else "",
        f"server {state.running:.0f} running, {state.waiting:.0f} waiting"
        if state.running is not None and state.waiting is not None
        else "",
        f"{state.lost_clients} clients LOST" if state.lost_clients else "",
        f"{max(0.0, state.remaining_s):.0f} s left" if state.remaining_s is not None else "",
    ]
    return " | ".join(part for part in parts if part)


class LiveObserver:
    """
    Draws on a terminal: finished levels as a growing table, the running one below it.

    Args:
        console: The terminal.
        shapes: The table is to compare packings.
    """

    def __init__(self, console: Console, *, shapes: bool = False) -> None:
        self._console = console
        self._table = shapes_table if shapes else level_table
        self._rows: list[Mapping[str, Any]] = []
        self._stage = ""
        self._outlook = ""
        self._level: LevelSpec | None = None
        self._state: LevelProgress | None = None
        self._live = Live(console=console, get_renderable=self._render, refresh_per_second=4, transient=True)

    def __enter__(self) -> LiveObserver:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def stage(self, text: str) -> None:
        """Show what is being done."""
        self._stage, self._level, self._state = text, None, None

    def note(self, text: str) -> None:
        """Print a note above the live part."""
        self._live.console.print(Text(f"note: {text}", style="yellow"))

    def tell(self, text: str) -> None:
        """Print it above the live part."""
        self._live.console.print(Text(text, style="dim"))

    def outlook(self, text: str) -> None:
        """Show it below the running level."""
        self._outlook = text

    def level_started(self, spec: LevelSpec) -> None:
        """Show a new level."""
        self._level, self._state = spec, None

    def progress(self, state: LevelProgress) -> None:
        """Take the newest state; it is drawn at the next refresh."""
        self._state = state

    def level_done(self, row: Mapping[str, Any]) -> None:
        """Add a row to the table."""
        self._rows.append(row)
        self._level = self._state = None
        self._stage = "reading the server's counters"

    def _render(self) -> RenderableType:
        parts: list[RenderableType] = []
        if self._rows:
            parts.append(self._table(self._rows, self._console.width))
        if self._level is None:
            parts.append(Spinner("dots", Text(self._stage)))
            return Group(*parts)
        line = Table.grid(padding=(0, 1))
        state = self._state
        if state is not None and state.planned:
            done = state.ok + state.failed + state.cut + state.dropped
            line.add_row(ProgressBar(total=state.planned, completed=done, width=24), level_name(self._level))
        else:
            line.add_row(Spinner("dots"), level_name(self._level))
        parts.append(line)
        if state is not None:
            parts.append(Text(progress_text(state)))
            if state.last_error:
                parts.append(
                    Text(f"latest error: {state.last_error}", style="red", overflow="ellipsis", no_wrap=True)
                )
        if self._outlook:
            parts.append(Text(self._outlook, style="dim"))
        return Group(*parts)


class PlainObserver:
    """Prints a line now and then, for logs and pipes; arguments as of LiveObserver."""

    def __init__(self, console: Console, *, shapes: bool = False) -> None:
        self._console = console
        self._shapes = shapes
        self._last_s = time.monotonic()

    def __enter__(self) -> PlainObserver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def _say(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def stage(self, text: str) -> None:
        """Print the stage."""
        self._say(f"{text} ...")

    def note(self, text: str) -> None:
        """Print the note."""
        self._say(f"note: {text}")

    def tell(self, text: str) -> None:
        """Print it."""
        self._say(text)

    def outlook(self, text: str) -> None:
        """Print it."""
        self._say(text)

    def level_started(self, spec: LevelSpec) -> None:
        """Print the level's name."""
        self._last_s = time.monotonic()
        self._say(f"level {spec.level}: {level_name(spec)}")

    def progress(self, state: LevelProgress) -> None:
        """Print the state every ten seconds."""
        if time.monotonic() - self._last_s >= _PLAIN_INTERVAL_S:
            self._last_s = time.monotonic()
            self._say(f"  {progress_text(state)}")

    def level_done(self, row: Mapping[str, Any]) -> None:
        """Print the level's main figures."""
        messages = f", {rate(row['user_message_rate'])} user messages/s" if self._shapes else ""
        self._say(
            f"  {row['requests_ok']} ok, {row['requests_failed']} failed, {rate(row['request_rate'])} requests/s, "
            f"{rate(row['output_token_rate'])} output tokens/s{messages}"
        )


class QuietObserver(PlainObserver):
    """Prints notes only."""

    def stage(self, text: str) -> None:
        """Print nothing."""

    def tell(self, text: str) -> None:
        """Print nothing."""

    def outlook(self, text: str) -> None:
        """Print nothing."""

    def level_started(self, spec: LevelSpec) -> None:
        """Print nothing."""

    def progress(self, state: LevelProgress) -> None:
        """Print nothing."""

    def level_done(self, row: Mapping[str, Any]) -> None:
        """Print nothing."""


def make_observer(console: Console, *, quiet: bool, shapes: bool = False) -> LiveObserver | PlainObserver:
    """Return the observer that fits: quiet, a terminal, or neither; shapes: packings are compared."""
    if quiet:
        return QuietObserver(console)
    fits = LiveObserver if console.is_terminal and not console.is_dumb_terminal else PlainObserver
    return fits(console, shapes=shapes)
