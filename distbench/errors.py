"""
The exceptions of distbench (floor F0).

A failed request is data, never one of these (core/records.py). These are for bad plans, lost clients, unusable targets and storage
that fails. Each carries the exit code of the command that ends with it, and each survives pickle, since it may cross a process
border: an ``__init__`` with arguments of its own needs ``__reduce__``.
"""

from __future__ import annotations

from collections.abc import Iterable

EXIT_OK = 0
EXIT_INCOMPLETE = 1
EXIT_USAGE = 2
EXIT_SLO = 3
EXIT_TARGET = 4
EXIT_INTERRUPTED = 130


class DistbenchError(Exception):
    """Base of all errors that a user is shown as one clear message."""

    exit_code: int = EXIT_INCOMPLETE


class PlanError(DistbenchError):
    """
    Options or a plan file are wrong.

    Attributes:
        problems: Every problem found, each one sentence: what, where, what to do. Never empty.
    """

    exit_code = EXIT_USAGE

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems: tuple[str, ...] = (problems,) if isinstance(problems, str) else tuple(problems)
        super().__init__("\n".join(self.problems))

    def __reduce__(self) -> tuple[type[PlanError], tuple[tuple[str, ...]]]:
        return type(self), (self.problems,)


class StoreError(DistbenchError):
    """A run directory cannot be written or read."""

    exit_code = EXIT_USAGE


class TargetError(DistbenchError):
    """The target cannot be used: unreachable, TLS, 401, unknown model, does not stream."""

    exit_code = EXIT_TARGET


class FleetError(DistbenchError):
    """The clients cannot be started or kept."""


class PlacementError(FleetError):
    """More clients were asked for than the cluster has places; both numbers are in the message."""

    exit_code = EXIT_USAGE


class ClientStartTimeout(FleetError):
    """A client did not come up within its limit."""


class ClientLost(FleetError):
    """
    A client died or stopped answering while a level ran.

    Attributes:
        client: Index of the client.
        reason: What is known, one sentence.
    """

    def __init__(self, client: int, reason: str) -> None:
        self.client = client
        self.reason = reason
        super().__init__(f"client {client} lost: {reason}")

    def __reduce__(self) -> tuple[type[ClientLost], tuple[int, str]]:
        return type(self), (self.client, self.reason)


class Interrupted(DistbenchError):
    """The user ended the run (Ctrl-C, SIGTERM); what was measured is kept."""

    exit_code = EXIT_INTERRUPTED
