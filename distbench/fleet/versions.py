"""Whether all clients run what the driver runs (floor F4, pure): a fleet of two versions measures two different things."""

from __future__ import annotations

import platform
from collections.abc import Sequence

from distbench import __version__
from distbench.client.messages import HostInfo

_HEAD = ("host", "address", "distbench", "Python", "Ray", "CPUs", "open files")


def versions_problem(
    hosts: Sequence[HostInfo], *, distbench: str = __version__, python: str | None = None
) -> str | None:
    """
    Return what stands against a fleet of several versions, with a table of its hosts; None where all are of one.

    Ray's own version is checked by Ray when a node joins; it stands in the table for completeness.

    Args:
        hosts: Of all clients.
        distbench: The driver's version.
        python: The driver's, to the patch level; None: this process'.
    """
    python = platform.python_version() if python is None else python
    if all((host.distbench, host.python) == (distbench, python) for host in hosts):
        return None
    return (
        f"the hosts do not run the same versions (the driver has distbench {distbench}, Python {python}); bring them to one with "
        f"ray up, or by hand:\n{host_table(hosts)}"
    )


def host_table(hosts: Sequence[HostInfo]) -> str:
    """Return a text table with one line for each machine, in the order of its first client."""
    lines = {host.node_id or host.hostname: _line(host) for host in reversed(hosts)}
    rows = [_HEAD, *reversed(lines.values())]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    return "\n".join(
        "  " + "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _line(host: HostInfo) -> tuple[str, ...]:
    return (
        host.hostname,
        host.address,
        host.distbench,
        host.python,
        host.ray or "-",
        str(host.num_cpus),
        str(host.open_files_limit),
    )
