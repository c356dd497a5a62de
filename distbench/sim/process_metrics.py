"""
The lines of the Prometheus text format, and what every Python process tells in it (floor F3).
"""

from __future__ import annotations

import functools
import gc
import os
import platform
import resource
import time
from pathlib import Path


def format_value(value: float) -> str:
    """Return a sample's value as prometheus_client writes it: repr, but 1.5e+06 from a million up."""
    text = repr(float(value))
    if text in ("inf", "nan", "-inf"):
        return {"inf": "+Inf", "nan": "NaN", "-inf": "-Inf"}[text]
    dot = text.find(".")
    if value > 0 and dot > 6 and "e" not in text:
        mantissa = f"{text[0]}.{text[1:dot]}{text[dot + 1 :]}".rstrip("0.")
        return f"{mantissa}e+0{dot - 1}" if dot - 1 < 10 else f"{mantissa}e+{dot - 1}"
    return text


def write_head(lines: list[str], name: str, help_text: str, kind: str) -> None:
    """Add the two lines that open a family."""
    lines.append(f"# HELP {name} {help_text}")
    lines.append(f"# TYPE {name} {kind}")


def write_process_families(lines: list[str]) -> None:
    """Add what prometheus_client tells of every Python process."""
    generations = gc.get_stats()
    for short, key, help_text in (
        ("objects_collected", "collected", "Objects collected during gc"),
        ("objects_uncollectable", "uncollectable", "Uncollectable objects found during GC"),
        ("collections", "collections", "Number of times this generation was collected"),
    ):
        name = f"python_gc_{short}_total"
        write_head(lines, name, help_text, "counter")
        lines += [
            f'{name}{{generation="{n}"}} {format_value(stats[key])}' for n, stats in enumerate(generations)
        ]
    major, minor, patch = platform.python_version_tuple()
    write_head(lines, "python_info", "Python platform information", "gauge")
    lines.append(
        f'python_info{{implementation="{platform.python_implementation()}",major="{major}",minor="{minor}",'
        f'patchlevel="{patch}",version="{platform.python_version()}"}} 1.0'
    )
    for name, kind, help_text, value in _process_values():
        write_head(lines, name, help_text, kind)
        lines.append(f"{name} {format_value(value)}")


def _process_values() -> list[tuple[str, str, str, float]]:
    """Read /proc/self; empty where there is none."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        open_fds = len(os.listdir("/proc/self/fd"))
    except (OSError, ValueError, IndexError):
        return []
    ticks = os.sysconf("SC_CLK_TCK")
    return [
        ("process_virtual_memory_bytes", "gauge", "Virtual memory size in bytes.", int(fields[20])),
        (
            "process_resident_memory_bytes",
            "gauge",
            "Resident memory size in bytes.",
            int(fields[21]) * os.sysconf("SC_PAGE_SIZE"),
        ),
        (
            "process_start_time_seconds",
            "gauge",
            "Start time of the process since unix epoch in seconds.",
            _process_start_s(),
        ),
        (
            "process_cpu_seconds_total",
            "counter",
            "Total user and system CPU time spent in seconds.",
            (int(fields[11]) + int(fields[12])) / ticks,
        ),
        ("process_open_fds", "gauge", "Number of open file descriptors.", open_fds),
        (
            "process_max_fds",
            "gauge",
            "Maximum number of open file descriptors.",
            resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        ),
    ]


@functools.cache
def _process_start_s() -> float:
    """Return the process' start in Unix time; read once, so that it never seems to have been restarted."""
    uptime_s = float(Path("/proc/uptime").read_text().split()[0])
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return round(time.time() - uptime_s + ticks / os.sysconf("SC_CLK_TCK"), 2)
