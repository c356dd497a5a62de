"""
The levels of the packing experiment (floor F4): which packings, at how many connections, and which of them the model's context allows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from distbench.core.levels import LevelSpec, default_requests, level_from_plan
from distbench.core.plan import Plan
from distbench.core.summary import LevelSummary
from distbench.core.workload import requests_of
from distbench.errors import PlanError

DEFAULT_CONNECTIONS = 32
DEFAULT_PACKINGS = (1, 2, 4, 8)
# As many as a level of run has: enough for a window of three a connection, its opening and its end.
_REQUESTS_PER_CONNECTION = 8
# Below this a connection does not finish three requests between the first and the last that it sends.
_FEWEST_PER_CONNECTION = 5


def packings_of(plan: Plan) -> tuple[int, ...]:
    """Return the numbers of user messages per request that shapes compares, ascending; 1, the reference, is always among them."""
    asked = plan.prompts.users_per_request
    return DEFAULT_PACKINGS if asked == (1,) else tuple(sorted({1, *asked}))


def shapes_population(plan: Plan) -> int | None:
    """
    Return the user messages that every shape sends; None where only the duration ends a level.

    --requests counts requests of one user message. By default there are so many that the largest packing still has 8 requests a
    connection.
    """
    load = plan.load
    if load.requests is not None or load.duration_s is not None:
        return load.requests
    connections = shape_connections(plan)
    return max(default_requests(connections), _REQUESTS_PER_CONNECTION * connections * max(packings_of(plan)))


def shape_levels(plan: Plan) -> list[LevelSpec]:
    """
    Return the levels: each packing k at N connections, and at N/k (as many messages in flight); all of them again for each repeat.

    The same population of user messages is sent at each.
    """
    connections, population = shape_connections(plan), shapes_population(plan)
    levels: list[LevelSpec] = []
    for repeat in range(1 + (plan.load.repeats or 0)):
        for packing in packings_of(plan):
            requests = None if population is None else requests_of(population, packing)
            most = connections if requests is None else min(connections, requests)
            for held in dict.fromkeys((most, max(1, min(most, connections // packing)))):
                base = level_from_plan(plan, level=len(levels), connections=held, repeat=repeat)
                levels.append(dataclasses.replace(base, requests=requests, users_per_request=packing))
    return levels


def shape_connections(plan: Plan) -> int:
    """Return the connections of the unpacked shape."""
    return plan.load.connections[0] if plan.load.connections else DEFAULT_CONNECTIONS


def fit_shapes(
    levels: Sequence[LevelSpec], summaries: Sequence[LevelSummary], max_model_len: int | None
) -> tuple[list[LevelSpec], list[str]]:
    """
    Leave out the packings of which no request fits the context, and say what is known beforehand of the others.

    Answers that only the context cuts short are kept: that is a thing to measure.

    Args:
        levels: As planned.
        summaries: Of the workload, as core/summary.describe gives them.
        max_model_len: Context; None: not known, all is kept.

    Returns:
        (levels to run, sentences).

    Raises:
        PlanError: no packing fits.
    """
    kept, notes = list(levels), []
    by_packing = {summary.users_per_request: summary for summary in summaries}
    for users, summary in sorted(by_packing.items()):
        if max_model_len is None or summary.refused is None or summary.too_long is None:
            continue
        name = _name(users)
        if summary.refused == summary.sampled:
            kept = [spec for spec in kept if spec.users_per_request != users]
            notes.append(
                f"{name} per request do not fit the model's context of {max_model_len} tokens (a prompt has up to "
                f"{summary.prompt_tokens.max}, its answer {summary.output_tokens.max}): that packing is left out"
            )
        elif summary.too_long:
            notes.append(
                f"{name} per request: {summary.too_long} of {summary.sampled} requests ask for more than is left of the model's "
                f"context of {max_model_len} tokens; their answers will be cut short and count by the part that was answered"
            )
    if not kept:
        raise PlanError(
            f"no packing fits the model's context of {max_model_len} tokens; lower system-tokens, user-tokens or output-tokens"
        )
    return kept, [*notes, *_too_few(kept)]


def _too_few(levels: Sequence[LevelSpec]) -> list[str]:
    """Say where the packed requests are too few for a measuring window."""
    few = [
        spec
        for spec in levels
        if spec.requests is not None
        and spec.requests < _FEWEST_PER_CONNECTION * spec.connections
        and spec.repeat == 0
    ]
    if not few:
        return []
    places = ", ".join(f"{spec.users_per_request} x {spec.connections} connections" for spec in few)
    needed = max(_FEWEST_PER_CONNECTION * spec.connections * spec.users_per_request for spec in few)
    return [
        f"too few requests for a measuring window at {places}: these will not be ranked; --requests {needed} or more gives each "
        f"connection {_FEWEST_PER_CONNECTION}"
    ]


def _name(users: int) -> str:
    return "1 user message" if users == 1 else f"{users} user messages"
