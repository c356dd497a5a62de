"""
What the marked tests need from a machine, and whether this one has it.

On a person's machine a missing part skips the tests that need it, with one line that says what is missing. Under CI it fails
them: there, a test that silently did not run would count as one that passed.
"""

import functools
import importlib.util
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

ROOT = Path(__file__).resolve().parents[2]
REAL_VLLM = ROOT / "scripts" / "real-vllm"


def in_ci() -> bool:
    """Whether a missing part is a failure."""
    return os.environ.get("CI", "") not in ("", "0", "false")


def skip_or_fail(reason: str) -> NoReturn:
    """End the running test: skipped on a person's machine, failed under CI."""
    if in_ci():
        pytest.fail(f"{reason} (a failure, because CI is set)", pytrace=False)
    pytest.skip(reason)


def find_command(name: str) -> str | None:
    """Path of a command, administrators' folders included; None when it is not installed."""
    search = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
    return shutil.which(name, path=search)


def _commands(*names: str) -> str | None:
    absent = [name for name in names if find_command(name) is None]
    return f"not installed: {', '.join(absent)}" if absent else None


def _hosts() -> str | None:
    if os.geteuid() != 0:
        return "making network namespaces needs root"
    absent = _commands("ip", "unshare", "nsenter", "setpriv", "sshd", "ssh", "rsync")
    if absent is not None:
        return absent
    probe = subprocess.run(
        ["unshare", "--net", "--mount", "--pid", "--fork", "true"], capture_output=True, check=False
    )
    return None if probe.returncode == 0 else "this machine does not let root make namespaces"


def _ray() -> str | None:
    return None if importlib.util.find_spec("ray") else "the package ray is not installed"


def _vllm() -> str | None:
    told = subprocess.run([REAL_VLLM, "env"], capture_output=True, text=True, check=False)
    if told.returncode == 0 and "yes" in told.stdout.split("installed")[-1]:
        return None
    return "no real vLLM is installed here: scripts/real-vllm install"


_PROBES: dict[str, Callable[[], str | None]] = {
    "bench": lambda: _commands("cc"),
    "browser": lambda: _commands("chromium", "chromedriver"),
    "hosts": _hosts,
    "nginx": lambda: _commands("nginx"),
    "ray": _ray,
    "vllm": _vllm,
}
MARKERS = frozenset(_PROBES)


@functools.cache
def missing(marker: str) -> str | None:
    """
    Say what this machine lacks for the tests of a marker.

    Args:
        marker: One of `MARKERS`.

    Returns:
        One sentence for the skip line; None when nothing is missing.
    """
    return _PROBES[marker]()
