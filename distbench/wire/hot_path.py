"""
Which code reads the tokens: compiled C where it could be built with the package, else Python (floor F2).

Both do the same; the compiled one takes about a quarter less processor time for a token. The environment variable
DISTBENCH_NO_EXTENSION, set to anything, asks for Python.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from typing import NamedTuple

from distbench.wire import repeats, sweep


class HotPath(NamedTuple):
    """
    What takes the bytes of tokens.

    Attributes:
        repeats: Class that counts the repeats of an answer; see repeats.py.
        read_ready: Function that reads the sockets that are ready, and counts with such repeats alone; see sweep.py.
        is_compiled: Whether it is C.
    """

    repeats: type[repeats.Repeats]
    read_ready: Callable[[select.epoll, dict[int, sweep.Stream], int], list[sweep.Left]]
    is_compiled: bool


PYTHON = HotPath(repeats=repeats.Repeats, read_ready=sweep.read_ready, is_compiled=False)
"""The one that is always there."""


def _compiled() -> HotPath | None:
    try:
        from distbench.wire import _hot_path
    except ImportError:  # there was no compiler, or it is another machine's
        return None
    return HotPath(repeats=_hot_path.Repeats, read_ready=_hot_path.read_ready, is_compiled=True)


COMPILED: HotPath | None = _compiled()
"""None where it could not be built."""

in_use: HotPath = PYTHON if COMPILED is None or os.environ.get("DISTBENCH_NO_EXTENSION") else COMPILED
"""The one that connections use."""
