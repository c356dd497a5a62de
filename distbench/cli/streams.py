"""Who may write to stdout (floor F5)."""

from __future__ import annotations

import os
import sys
from typing import TextIO


def claim_stdout() -> TextIO:
    """
    Take stdout for the result alone, and return it.

    Libraries in C++ below Ray print to file descriptor 1 whatever Python is told. From here on that descriptor is stderr's, for
    this process and its children; only the returned file still reaches the real stdout. Line-buffered.
    """
    sys.stdout.flush()
    real = os.dup(1)
    os.dup2(2, 1)
    return os.fdopen(real, "w", buffering=1, encoding="utf-8", errors="replace")
