"""
Processes held to a share of a core: by a control group where one can be made, else by stopping and continuing them in turn.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from pathlib import Path
from typing import Protocol

_PERIOD_US = 20_000
_UNIFIED = Path("/sys/fs/cgroup")
_CPU_V1 = Path("/sys/fs/cgroup/cpu")


class Throttle(Protocol):
    """Holds one process to a share of a core from hold() to release()."""

    def hold(self, pid: int) -> None:
        """Begin."""
        ...

    def release(self) -> None:
        """End; the process may be gone already."""
        ...


def throttle(share: float) -> Throttle:
    """
    Return the best way that this machine allows.

    Args:
        share: Of one core, 0..1.
    """
    for make in (_GroupV2, _GroupV1):
        with contextlib.suppress(OSError):
            return make(share)
    return DutyCycle(share)


class _Group:
    """A control group of its own for one process."""

    def __init__(self, parent: Path) -> None:
        self._folder = parent / f"distbench-{os.getpid()}-{id(self):x}"
        self._home = parent / "cgroup.procs"
        self._folder.mkdir()

    def hold(self, pid: int) -> None:
        """Move the process in."""
        (self._folder / "cgroup.procs").write_text(str(pid))

    def release(self) -> None:
        """Move what is left back and remove the group."""
        for pid in (self._folder / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                self._home.write_text(pid)
        with contextlib.suppress(OSError):
            self._folder.rmdir()


class _GroupV2(_Group):
    def __init__(self, share: float) -> None:
        super().__init__(_UNIFIED)
        try:
            _write(self._folder / "cpu.max", f"{round(share * _PERIOD_US)} {_PERIOD_US}")
        except OSError:
            self._folder.rmdir()
            raise


class _GroupV1(_Group):
    def __init__(self, share: float) -> None:
        super().__init__(_CPU_V1)
        try:
            _write(self._folder / "cpu.cfs_period_us", str(_PERIOD_US))
            _write(self._folder / "cpu.cfs_quota_us", str(round(share * _PERIOD_US)))
        except OSError:
            self._folder.rmdir()
            raise


def _write(path: Path, text: str) -> None:
    """Write to a file that must be there already, as the kernel's are."""
    with path.open("r+") as file:
        file.write(text)


class DutyCycle:
    """
    Lets a process run for its share of every period. It may use a whole core then and none between: coarser than a group.

    Args:
        share: Of the time, 0..1.
        period_s: From one stop to the next; it stands still for the rest of each.
    """

    def __init__(self, share: float, period_s: float = _PERIOD_US / 1e6) -> None:
        self._on_s = share * period_s
        self._off_s = (1 - share) * period_s
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    def hold(self, pid: int) -> None:
        """Begin."""
        self._thread = threading.Thread(target=self._drive, args=(pid,), daemon=True)
        self._thread.start()

    def release(self) -> None:
        """Let it run freely."""
        self._end.set()
        if self._thread is not None:
            self._thread.join()

    def _drive(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            while not self._end.wait(self._on_s):
                os.kill(pid, signal.SIGSTOP)
                self._end.wait(self._off_s)
                os.kill(pid, signal.SIGCONT)
            os.kill(pid, signal.SIGCONT)
