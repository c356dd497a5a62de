"""Readings of a machine, a cluster and a stream at which the doctor finds nothing wrong; the tests spoil one thing at a time."""

from __future__ import annotations

from typing import Any

from distbench.clock import SAME_CLOCK
from distbench.experiment.doctor.cluster import ClockReading, ClusterReading
from distbench.experiment.doctor.machine import MachineReading
from distbench.experiment.doctor.streaming import StreamReading

VERSIONS = {"python": "3.11.7", "ray": "2.60.0", "distbench": "0.1.0"}


def machine(**changes: Any) -> MachineReading:
    """Return a good machine with these readings changed."""
    good: dict[str, Any] = {
        "hostname": "h1",
        "clock_identity": "boot-1",
        "open_files_limit": 65_536,
        "local_ports": 28_232,
        "listen_backlog": 4_096,
        "kernel_stamps": True,
        "uvloop": True,
        "compiled": True,
        "num_cpus": 8,
        "quota_cpus": None,
        "governors": ("performance",),
        "steal_ratio": 0.0,
        "busy_ratio": 0.05,
        "wall_ns": 0,
        "monotonic_ns": 0,
    }
    return MachineReading(**{**good, **changes})


def cluster(**changes: Any) -> ClusterReading:
    """Return a good cluster of two nodes with these readings changed."""
    good: dict[str, Any] = {
        "nodes": ("h1", "h2"),
        "places": 7,
        "own_versions": VERSIONS,
        "versions": {"h1": VERSIONS, "h2": VERSIONS},
        "clocks": {
            "h1": ClockReading(offset=SAME_CLOCK, wall_ahead_ns=0),
            "h2": ClockReading(offset=SAME_CLOCK, wall_ahead_ns=3_000_000),
        },
    }
    return ClusterReading(**{**good, **changes})


def stream(arrivals_ms: list[float], *, tokens: int | None = None, **headers: str) -> StreamReading:
    """Return an answer whose chunks arrived at these times after its sending; underscores in header names are hyphens."""
    return StreamReading(
        headers={name.replace("_", "-"): value for name, value in headers.items()},
        arrivals_ns=tuple(round(ms * 1e6) for ms in arrivals_ms),
        tokens=len(arrivals_ms) if tokens is None else tokens,
        e2e_s=arrivals_ms[-1] / 1e3 if arrivals_ms else None,
    )
