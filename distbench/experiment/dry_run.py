"""What a plan would do, told without sending anything (floor F4)."""

from __future__ import annotations

from typing import Any

import orjson

from distbench.core.levels import LevelSpec
from distbench.core.plan import Plan
from distbench.core.plan_io import plan_to_table
from distbench.core.records import Phase
from distbench.core.summary import describe
from distbench.core.workload import build_workload, fit_level
from distbench.experiment.datafile import open_dataset
from distbench.experiment.planners import planned_levels
from distbench.experiment.shapes import shapes_population

# What a token is taken to cost where nothing was measured yet: in the middle of what large models show under load.
ASSUMED_TOKEN_S = 0.03
_OVERHEAD_S = 3.0  # start order, connecting, settling of the server's counters
_SAMPLE_CHARS = 400


def describe_plan(plan: Plan) -> dict[str, Any]:
    """
    Return the plan, its levels, its prompts and an estimated time; nothing is asked of the target.

    Raises:
        PlanError: the data set cannot be used.
    """
    with open_dataset(plan.prompts) as lines:
        population = shapes_population(plan) if plan.command == "shapes" else None
        workload = build_workload(plan, dataset_lines=lines, population=population)
    levels = [fit_level(spec, plan, workload) for spec in planned_levels(plan)]
    summary = describe(workload, levels)
    estimate_s = sum(_estimate_s(spec, plan) for spec in levels)
    first = levels[0]
    prompt = workload.prompt(
        phase=Phase.MEASURED, level=first.level, index=0, users_per_request=first.users_per_request
    )
    content = prompt.messages if prompt.token_ids is None else prompt.token_ids
    return {
        "plan": plan_to_table(plan),
        "targets": list(plan.target.urls),
        "levels": [
            {
                "connections": spec.connections,
                "requests": spec.requests,
                "warmup": spec.warmup,
                "duration_s": spec.duration_s,
                "pattern": spec.pattern,
                "users_per_request": spec.users_per_request,
            }
            for spec in levels
        ],
        "prompts": summary.lines(),
        "first_request": orjson.dumps(content).decode()[:_SAMPLE_CHARS],
        "max_tokens": prompt.max_tokens,
        "estimated_time_s": round(estimate_s, 1),
        "estimate": f"at {ASSUMED_TOKEN_S * 1000:.0f} ms a token, without repeats; the server decides",
    }


def _estimate_s(spec: LevelSpec, plan: Plan) -> float:
    """Return the time of a level if every connection got a token each ASSUMED_TOKEN_S; a rate or duration may say better."""
    known = [] if spec.duration_s is None else [spec.duration_s]
    if spec.requests is not None:
        if spec.rate_rps is not None:
            known.append(spec.requests / spec.rate_rps)
        else:
            per_request_s = plan.prompts.output_tokens.mean * spec.users_per_request * ASSUMED_TOKEN_S
            known.append((spec.requests + spec.warmup) * per_request_s / spec.connections)
    return min(known) + _OVERHEAD_S
