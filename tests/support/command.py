"""The real command in a process of its own, on a terminal or not, while it runs."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.needs import ROOT

# Short prompts: what a server does is not the matter here.
SMALL = ("--system-tokens", "16", "--user-tokens", "16", "--output-tokens", "8", "--no-metrics")


class Command:
    """
    `distbench` with arguments, as a context: whatever is left of it is killed at the end.

    Args:
        arguments: Of distbench.
        output: Its run directory (wait_for_rows needs it to be a folder), added to the arguments.
        terminal: Run it as the foreground job of a terminal, where typed keys become signals.
        environment: More variables.
    """

    def __init__(
        self,
        *arguments: str,
        output: Path | str,
        terminal: bool = False,
        environment: dict[str, str] | None = None,
    ) -> None:
        self.output = output
        self._command = [sys.executable, "-m", "distbench.cli.main", *arguments, "--output", str(output)]
        self._terminal = terminal
        # The mark finds every process that this one started, whatever became of its parents.
        mark = f"{os.getpid()}-{time.monotonic_ns()}"
        self._mark = f"DISTBENCH_TEST_MARK={mark}"
        own = {"PYTHONPATH": str(ROOT), "TERM": "xterm", "DISTBENCH_TEST_MARK": mark}
        self._environment = {**os.environ, **own, **(environment or {})}
        self._shown = bytearray()
        self._process: subprocess.Popen[bytes] | None = None
        self._end = -1
        self._reader = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Self:
        """Start it."""
        self._end, other = pty.openpty() if self._terminal else os.pipe()
        self._process = subprocess.Popen(
            self._command,
            stdin=other if self._terminal else subprocess.DEVNULL,
            stdout=other,
            stderr=other,
            env=self._environment,
            start_new_session=True,
            preexec_fn=_take_terminal if self._terminal else None,
        )
        os.close(other)
        self._reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill what is left."""
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert self._process is not None
        self._process.wait(10)
        self._reader.join(10)
        os.close(self._end)

    @property
    def shown(self) -> str:
        """Everything that the user has seen so far."""
        return self._shown.decode(errors="replace")

    @property
    def pid(self) -> int:
        """Of the driver."""
        assert self._process is not None
        return self._process.pid

    def type(self, keys: bytes) -> None:
        """Type on the terminal."""
        os.write(self._end, keys)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the driver alone."""
        os.kill(self.pid, number)

    def wait(self, limit_s: float) -> int:
        """Return the exit code; fail with what was shown after the limit."""
        assert self._process is not None
        try:
            return self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still runs after {limit_s:g} s: {self.shown[-3000:]}") from None

    def wait_for_rows(self, limit_s: float = 60.0, clients: int = 1) -> None:
        """Return when request rows of so many clients are on disk."""
        folder = Path(self.output) / "requests/level-0000"
        self.wait_until(lambda: len({p.name[:11] for p in folder.glob("*.parquet")}) >= clients, limit_s)

    def wait_until(self, check: Any, limit_s: float = 60.0) -> None:
        """Return when check() is true; fail with what was shown after the limit, or when the command ends first."""
        assert self._process is not None
        end_s = time.monotonic() + limit_s
        while not check():
            assert self._process.poll() is None, f"ended early: {self.shown[-3000:]}"
            assert time.monotonic() < end_s, f"not within {limit_s:g} s: {self.shown[-3000:]}"
            time.sleep(0.1)

    def processes(self) -> list[int]:
        """Return the pids of all living processes of this command, detached ones included."""
        found = []
        for folder in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if folder.name.isdigit() and self._mark.encode() in (folder / "environ").read_bytes().split(
                    b"\0"
                ):
                    found.append(int(folder.name))
        return found

    def wait_until_gone(self, limit_s: float) -> None:
        """Return when no process of it is left."""
        end_s = time.monotonic() + limit_s
        while left := self.processes():
            assert time.monotonic() < end_s, f"left over after {limit_s:g} s: {[_line(pid) for pid in left]}"
            time.sleep(0.2)

    def _read(self) -> None:
        while True:
            try:
                readable, _, _ = select.select([self._end], [], [], 0.5)
                data = os.read(self._end, 65536) if readable else None
            except OSError:  # the last writer of a terminal is gone
                return
            if data == b"":
                return
            self._shown += data or b""
            if data is None and self._process is not None and self._process.poll() is not None:
                return


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:120]
    except OSError:
        return str(pid)
