"""
What the operating system allows one client: open files and local ports (floor F3).

Both run out silently otherwise, and a client that ran out looks like a server that fails.
"""

from __future__ import annotations

import os
import resource
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

# What a client needs beside its connections: event loop, libraries, Ray's channels, files of the recorder.
_SPARE_FILES = 128
_PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
# The kernel's default where the file cannot be read.
_DEFAULT_PORTS = (32_768, 60_999)


def raise_open_files() -> int:
    """
    Raise the soft limit of open files to the hard one.

    Returns:
        The soft limit afterwards.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError):  # an unlimited hard limit above what the kernel grants
            return soft
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def open_files() -> int:
    """Return how many files this process has open; 0 where that cannot be told."""
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 0


def files_problem(connections: int, limit: int, already_open: int = 0) -> str | None:
    """
    Say in one sentence why a client cannot hold its connections; None where it can.

    Args:
        connections: Of this client.
        limit: Its soft limit of open files, after raising it.
        already_open: Files it has open before.
    """
    needed = connections + already_open + _SPARE_FILES
    if needed <= limit:
        return None
    return (
        f"open files: {connections} connections need {needed}, this client may have {limit}; "
        f"raise the limit (ulimit -Hn {needed}, or LimitNOFILE= of its service), or use more clients"
    )


def local_ports() -> int:
    """Return how many local ports the kernel hands out for connections to one address."""
    try:
        low, high = (int(text) for text in _PORT_RANGE.read_text().split())
    except (OSError, ValueError):
        low, high = _DEFAULT_PORTS
    return max(0, high - low + 1)


def ports_problem(targets: Iterable[str], available: int) -> str | None:
    """
    Say in one sentence why this machine has too few local ports for its connections; None where it has enough.

    Args:
        targets: "host:port" of each connection of this machine; a local port is used once per target.
        available: Local ports, see local_ports().
    """
    per_target = Counter(targets)
    if not per_target:
        return None
    target, needed = per_target.most_common(1)[0]
    if needed <= available:
        return None
    return (
        f"local ports: {needed} connections to {target} need as many, this machine has {available}; "
        f"widen net.ipv4.ip_local_port_range, or use more hosts"
    )
