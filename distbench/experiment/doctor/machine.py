"""
What one machine is like, read off its own files (floor F4).

A MachineReading crosses from the cluster's nodes to the driver, so it is plain values; what it means is judged in machine_checks.py.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

from distbench.client.hostinfo import kernel_stamps_work
from distbench.client.limits import local_ports, raise_open_files
from distbench.clock import clock_identity
from distbench.wire import hot_path

_WATCH_S = 1.0
# Columns of a line of /proc/stat (proc(5)).
_IDLE, _IOWAIT, _STEAL, _GUEST = 3, 4, 7, 8


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MachineReading:
    """
    One machine, as one process on it sees it.

    Attributes:
        hostname: Its name.
        clock_identity: distbench.clock.clock_identity().
        open_files_limit: Soft limit of open files after raising it.
        local_ports: Local ports that the kernel hands out for connections to one address.
        listen_backlog: Most connections that wait to be accepted by a listener here (somaxconn); None: not told.
        kernel_stamps: Whether the kernel stamps what a TCP socket receives.
        uvloop: Whether uvloop can be imported.
        compiled: Whether the client's hot path is compiled code; see wire/hot_path.py.
        num_cpus: CPUs that the process may run on.
        quota_cpus: CPUs that its control group grants it over time; None: no quota, or not told.
        governors: Distinct frequency governors of its CPUs; empty: not told, as on virtual machines.
        steal_ratio: Share of the watched time in which the hypervisor ran something else, 0..1; None: not told.
        busy_ratio: Share in which its CPUs worked, 0..1; None: not told.
        wall_ns, monotonic_ns: Both clocks at one instant, for comparing wall clocks between machines.
    """

    hostname: str
    clock_identity: str
    open_files_limit: int
    local_ports: int
    listen_backlog: int | None
    kernel_stamps: bool
    uvloop: bool
    compiled: bool
    num_cpus: int
    quota_cpus: float | None
    governors: tuple[str, ...]
    steal_ratio: float | None
    busy_ratio: float | None
    wall_ns: int
    monotonic_ns: int


def read_machine(
    root: Path = Path("/"), *, watch_s: float = _WATCH_S, sleep: Callable[[float], None] = time.sleep
) -> MachineReading:
    """
    Read the machine of this process; raises its limit of open files on the way, as a client would.

    Args:
        root: Where /proc and /sys hang.
        watch_s: How long the CPUs are watched.
        sleep: Waits so long.
    """
    before = _cpu_times(root)
    sleep(watch_s)
    steal, busy = cpu_shares(before, _cpu_times(root))
    return MachineReading(
        hostname=socket.gethostname(),
        clock_identity=clock_identity(),
        open_files_limit=raise_open_files(),
        local_ports=local_ports(),
        listen_backlog=_number(_text(root / "proc/sys/net/core/somaxconn")),
        kernel_stamps=kernel_stamps_work(),
        uvloop=_has_uvloop(),
        compiled=hot_path.in_use.is_compiled,
        num_cpus=len(os.sched_getaffinity(0)),
        quota_cpus=cpu_quota(root),
        governors=governors(root),
        steal_ratio=steal,
        busy_ratio=busy,
        wall_ns=time.time_ns(),
        monotonic_ns=time.monotonic_ns(),
    )


def cpu_shares(before: list[int], after: list[int]) -> tuple[float | None, float | None]:
    """
    Return (stolen, busy) as shares of the CPU time between two readings of the first line of /proc/stat; None: not told.

    Args:
        before: Its numbers, in clock ticks since the start.
        after: The same later.
    """
    if len(before) <= _STEAL or len(after) <= _STEAL:
        return None, None
    # Guest time is counted a second time as user time.
    spent = [max(0, b - a) for a, b in zip(before[:_GUEST], after[:_GUEST], strict=True)]
    total = sum(spent)
    if total == 0:
        return None, None
    return spent[_STEAL] / total, (total - spent[_IDLE] - spent[_IOWAIT] - spent[_STEAL]) / total


def governors(root: Path) -> tuple[str, ...]:
    """Return the distinct frequency governors; empty where the machine does not tell."""
    files = (root / "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor")
    return tuple(sorted({text for file in files if (text := _text(file))}))


def cpu_quota(root: Path) -> float | None:
    """Return how many CPUs the control group of a container grants; None where there is no quota or it cannot be read."""
    words = (_text(root / "sys/fs/cgroup/cpu.max") or "").split()
    if not words:  # the first version of control groups
        folder = root / "sys/fs/cgroup/cpu"
        words = [_text(folder / f"cpu.cfs_{name}_us") or "" for name in ("quota", "period")]
    numbers = [_number(word) for word in words]
    if len(numbers) != 2 or not numbers[0] or not numbers[1] or numbers[0] < 0:
        return None
    return numbers[0] / numbers[1]


def _cpu_times(root: Path) -> list[int]:
    line = (_text(root / "proc/stat") or "").partition("\n")[0].split()
    if line[:1] != ["cpu"]:
        return []
    return [int(word) for word in line[1:] if word.isdigit()]


def _has_uvloop() -> bool:
    with contextlib.suppress(ImportError):
        import uvloop

        return uvloop is not None
    return False


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None


def _number(text: str | None) -> int | None:
    try:
        return int(text or "")
    except ValueError:
        return None
