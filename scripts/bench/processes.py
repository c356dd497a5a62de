"""
Programs run as the benchmarks run them: pinned to cores, limited in time, their processor time and memory taken over the whole tree.

A tree of one process is measured by the kernel's own account of it at its end. Of a tree of several (Ray's daemons outlive their
parents) each process is looked at ten times a second, and its last look counts: what it used after that is missing, which a
difference of two runs cancels.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import psutil

_LOOK_EVERY_S = 0.1
_STDERR_SHOWN = 2_000
_REALTIME_PRIORITY = 5

RoleOf = Callable[[str], str]
"""Names the part that a process plays, by its command line."""


class BenchError(Exception):
    """A measurement could not be made; the text says why."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cores:
    """
    Where server and clients run.

    Attributes:
        server, client: Core numbers; None where the machine has one core only, and nothing is pinned.
    """

    server: int | None
    client: int | None

    @classmethod
    def of_this_machine(cls) -> Cores:
        """Take the first two cores that this process may use."""
        allowed = sorted(os.sched_getaffinity(0))
        return (
            cls(server=allowed[0], client=allowed[1]) if len(allowed) > 1 else cls(server=None, client=None)
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Usage:
    """
    What a program and all its descendants used.

    Attributes:
        cpu_s: Processor seconds by role.
        rss_bytes: Largest resident memory by role, summed over the processes of the role.
        wall_s: From start to end.
        output: Its standard output.
    """

    cpu_s: Mapping[str, float]
    rss_bytes: Mapping[str, int]
    wall_s: float
    output: str

    @property
    def total_cpu_s(self) -> float:
        """Processor seconds of the whole tree."""
        return sum(self.cpu_s.values())


def has_compiler() -> bool:
    """Whether the C programs can be built here."""
    return shutil.which("cc") is not None


def pin(pid: int, core: int | None, *, realtime: bool = False) -> None:
    """
    Put a process on one core; its threads and children to come go with it.

    Args:
        pid: The process; 0 is this one.
        core: Its core; None leaves it where it is.
        realtime: Ahead of everything of ordinary priority, so that other work on the machine enters the figures less.

    Raises:
        PermissionError: realtime was asked for and is not allowed.
    """
    if core is not None:
        os.sched_setaffinity(pid, {core})
    if realtime:
        os.sched_setscheduler(pid, os.SCHED_RR, os.sched_param(_REALTIME_PRIORITY))


def everything_is(role: str) -> RoleOf:
    """Return a RoleOf for programs whose processes all play the same part."""
    return lambda _: role


def run(
    command: Sequence[str],
    *,
    core: int | None = None,
    realtime: bool = False,
    role_of: RoleOf | None = None,
    limit_s: float = 600.0,
    env: Mapping[str, str] | None = None,
) -> Usage:
    """
    Run a program to its end.

    Args:
        command: Program and arguments.
        core: The core for it and its descendants; None: any.
        realtime: See pin().
        role_of: Names processes; None: all are "client".
        limit_s: It is ended, and the measurement given up, after so long.
        env: Its environment; None: this process' own.

    Raises:
        BenchError: it failed, or took too long.
    """
    tree = Tree(role_of or everything_is("client"))
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        began_s = time.monotonic()
        process = subprocess.Popen(
            command,
            stdout=out,
            stderr=err,
            env=None if env is None else dict(env),
            preexec_fn=lambda: pin(0, core, realtime=realtime),
        )
        code, used = _wait(process, tree, began_s + limit_s)
        wall_s = time.monotonic() - began_s
        out.seek(0)
        err.seek(0)
        output, errors = out.read().decode("utf-8", "replace"), err.read().decode("utf-8", "replace")
    if code != 0:
        raise BenchError(f"{command[0]} ended with {code}: {(errors or output)[-_STDERR_SHOWN:].strip()}")
    cpu_s, rss_bytes = tree.cpu_s, tree.rss_bytes
    if tree.num_seen <= 1:
        role = tree.role_of(" ".join(command))
        cpu_s = {role: used.ru_utime + used.ru_stime}
        # The kernel's own maximum counts what the process was before it became the program; it stands in for one never seen.
        rss_bytes = rss_bytes or {role: used.ru_maxrss * 1024}
    return Usage(cpu_s=cpu_s, rss_bytes=rss_bytes, wall_s=wall_s, output=output)


def _wait(process: subprocess.Popen[bytes], tree: Tree, deadline_s: float) -> tuple[int, Any]:
    """Wait for the end, looking at the tree; wait4 tells what the kernel counted."""
    while True:
        pid, status, used = os.wait4(process.pid, os.WNOHANG)
        if pid:
            code = os.waitstatus_to_exitcode(status)
            process.returncode = code
            return code, used
        if time.monotonic() > deadline_s:
            end_tree(process.pid)
            process.wait()
            raise BenchError(f"{process.args!r} did not end in time")
        tree.look(process.pid)
        time.sleep(_LOOK_EVERY_S)


def end_tree(pid: int) -> None:
    """End a process and its descendants, whichever of them still live."""
    try:
        root = psutil.Process(pid)
        members = [*root.children(recursive=True), root]
    except psutil.NoSuchProcess:
        return
    for member in members:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()


class Tree:
    """What the processes of a tree had used when last looked at."""

    def __init__(self, role_of: RoleOf) -> None:
        self.role_of = role_of
        self._known: dict[int, psutil.Process] = {}
        self._cpu_s: dict[int, float] = {}
        self._rss: dict[int, int] = {}
        self._role: dict[int, str] = {}

    @property
    def num_seen(self) -> int:
        """Processes ever seen."""
        return len(self._cpu_s)

    @property
    def cpu_s(self) -> dict[str, float]:
        """Processor seconds by role."""
        return self._by_role(self._cpu_s)

    @property
    def rss_bytes(self) -> dict[str, int]:
        """Largest resident memory of each process, summed by role."""
        return self._by_role(self._rss)

    def look(self, root: int) -> None:
        """Note what every process of the tree has used so far."""
        try:
            process = psutil.Process(root)
            for member in [process, *process.children(recursive=True)]:
                self._known.setdefault(member.pid, member)
        except psutil.NoSuchProcess:
            pass
        for pid, member in list(self._known.items()):
            try:
                with member.oneshot():
                    times, rss = member.cpu_times(), member.memory_info().rss
                    # Ray names its processes only some time after their start.
                    self._role[pid] = self.role_of(" ".join(member.cmdline())) if rss else self._role[pid]
            except (psutil.NoSuchProcess, psutil.ZombieProcess, KeyError):
                del self._known[pid]
                continue
            self._cpu_s[pid] = times.user + times.system
            self._rss[pid] = max(rss, self._rss.get(pid, 0))

    def _by_role(self, values: Mapping[int, Any]) -> dict[str, Any]:
        summed: dict[str, Any] = defaultdict(int)
        for pid, value in values.items():
            summed[self._role[pid]] += value
        return dict(summed)
