"""The two codes that read tokens, compiled and in Python, for tests that must hold on either."""

from __future__ import annotations

import pytest

from distbench.wire import hot_path
from distbench.wire.hot_path import HotPath
from tests.support.needs import skip_or_fail


def compiled_hot_path() -> HotPath:
    """Return the compiled one; skip the test where there is none."""
    if hot_path.COMPILED is None:
        skip_or_fail(
            "the hot path was not compiled when distbench was installed: it takes cc and Python's headers"
        )
    return hot_path.COMPILED


def use_hot_path(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let new connections use the "compiled" one or that of "python"."""
    chosen = compiled_hot_path() if name == "compiled" else hot_path.PYTHON
    monkeypatch.setattr(hot_path, "in_use", chosen)
