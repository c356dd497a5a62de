"""Is it the same workload, on the same server? What two runs were asked for, side by side (floor F3, pure)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from distbench.core.plan_io import OPTIONS

# What these say does not change what the server is asked: where results go, and who sends.
_CLIENT_KEYS = frozenset(
    (
        "output",
        "ray-address",
        "allow-fewer",
        "client-resource",
        "client-label",
        "clients-per-node",
        "clients",
        "http-client",
        "trust-env",
        "verify-client",
        "ca-file",
        "insecure",
        "api-key-env",
        "header",
    )
)
_SERVER_KEYS = frozenset(("urls", "model", "metrics-url", "gpu-metrics-url", "no-metrics"))
# How long and how often is measured changes the noise, not the load.
_AMOUNT_KEYS = frozenset(
    ("requests", "duration", "warmup", "repeats", "max-failures", "start", "max", "factor")
)
_ABSENT = object()


class Aspect(StrEnum):
    """What a difference is about; a comparison of different workloads says nothing of the servers."""

    WORKLOAD = "workload"
    SERVER = "server"
    AMOUNT = "amount"
    CLIENT = "client"


@dataclasses.dataclass(frozen=True, slots=True)
class Difference:
    """One setting that differs; None: not set in that run."""

    aspect: Aspect
    key: str
    baseline: Any
    candidate: Any


def plan_differences(
    baseline: Mapping[str, Any],
    candidate: Mapping[str, Any],
    server_baseline: Mapping[str, Any],
    server_candidate: Mapping[str, Any],
) -> list[Difference]:
    """
    Return what differs, the workload first.

    Args:
        baseline: Table of plan.toml.
        candidate: Likewise.
        server_baseline: What is known of the servers (version, context, ...), and the versions of the programs.
        server_candidate: Likewise.
    """
    keys = [option.key for option in OPTIONS]
    ordered = [*keys, *sorted((set(baseline) | set(candidate)) - set(keys))]
    found = [
        Difference(aspect_of(key), key, baseline.get(key), candidate.get(key))
        for key in ordered
        if baseline.get(key, _ABSENT) != candidate.get(key, _ABSENT)
    ]
    for key in sorted(set(server_baseline) | set(server_candidate)):
        if server_baseline.get(key) != server_candidate.get(key):
            found.append(Difference(Aspect.SERVER, key, server_baseline.get(key), server_candidate.get(key)))
    return sorted(found, key=lambda difference: list(Aspect).index(difference.aspect))


def aspect_of(key: str) -> Aspect:
    """Return what a plan key is about."""
    if key in _CLIENT_KEYS or key.startswith("timeout-"):
        return Aspect.CLIENT
    if key in _SERVER_KEYS:
        return Aspect.SERVER
    return Aspect.AMOUNT if key in _AMOUNT_KEYS else Aspect.WORKLOAD
