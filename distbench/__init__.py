"""distbench: find, and prove, what a large LLM deployment can carry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distbench.api import Run, load, run

__version__ = "0.1.0"
__all__ = ["Run", "__version__", "load", "run"]


def __getattr__(name: str) -> Any:
    """Import the Python API when it is used: `distbench --help` and the clients need none of pandas."""
    if name in ("Run", "load", "run"):
        from distbench import api

        return getattr(api, name)
    raise AttributeError(f"module 'distbench' has no attribute {name!r}")
