"""
From a plan to its workload: the one place that chooses (floor F1; the file of a data set is opened by the caller).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from distbench.core.calibration import Calibration
from distbench.core.content import fewest_tokens
from distbench.core.datasets import read_jsonl, read_sharegpt
from distbench.core.levels import LevelSpec
from distbench.core.plan import Plan
from distbench.core.prompts import Workload
from distbench.core.records import Phase
from distbench.core.replay import ReplayWorkload
from distbench.core.synthetic import SyntheticWorkload, longest_system_tokens
from distbench.core.trace_workload import TraceWorkload
from distbench.core.traces import read_trace
from distbench.errors import PlanError

_UNKNOWN_TEMPLATE_TOKENS = 64


def build_workload(
    plan: Plan,
    *,
    dataset_lines: Iterable[bytes] | None = None,
    calibration: Calibration | None = None,
    max_model_len: int | None = None,
    population: int | None = None,
) -> Workload:
    """
    Make the workload of a plan.

    Args:
        plan: The whole plan; the endpoint and the pattern matter as well as the prompts.
        dataset_lines: Lines of the file at plan.prompts.dataset_path (an open binary file is one); None with synthetic.
        calibration: What is known of the tokenizer; None: nothing, lengths are approximate.
        max_model_len: Context of the served model; None: not known. Rows of a data set that cannot fit are left out and counted
            (num_too_long), drawn lengths of synthetic messages are lowered to what fits one message per request.
        population: Measured user messages of each level (the shapes experiment); None: as many as the requests hold.

    Returns:
        Picklable; equal arguments give equal prompts everywhere.

    Raises:
        PlanError: the data cannot be used, or no request could fit the context.
    """
    prompts, endpoint = plan.prompts, plan.target.endpoint
    if prompts.dataset == "synthetic":
        return _synthetic(plan, calibration, max_model_len, population)
    if dataset_lines is None:
        raise PlanError(f"dataset {prompts.dataset} was not read")
    path = str(prompts.dataset_path)
    if prompts.dataset == "trace":
        timed = plan.load.pattern == "trace"
        workload = TraceWorkload(
            prompts,
            read_trace(dataset_lines, path),
            calibration=calibration,
            endpoint=endpoint,
            timed=timed,
            warmup=plan.load.warmup or 0,
            max_model_len=max_model_len,
        )
        _check_trace(plan, workload)
        return workload
    read = read_sharegpt if prompts.dataset == "sharegpt" else read_jsonl
    conversations, report = read(dataset_lines, path)
    replay = ReplayWorkload(
        prompts, conversations, report, max_model_len=max_model_len, population=population
    )
    if plan.command == "shapes" or max(prompts.users_per_request) > 1:
        replay.check_packing()
    return replay


def fit_level(spec: LevelSpec, plan: Plan, workload: Workload) -> LevelSpec:
    """Return a level with as many requests as a replayed schedule holds, where the plan names neither requests nor duration."""
    if spec.pattern == "trace" and plan.load.requests is None:
        return dataclasses.replace(spec, requests=workload.num_requests())
    return spec


def requests_of(population: int, users_per_request: int) -> int:
    """Return the requests that a population of user messages makes; the last one may hold fewer."""
    return -(-population // users_per_request)


def _synthetic(
    plan: Plan, calibration: Calibration | None, max_model_len: int | None, population: int | None
) -> SyntheticWorkload:
    prompts, endpoint = plan.prompts, plan.target.endpoint
    bound = None
    if max_model_len is not None and not prompts.user_tokens.is_fixed:
        output = prompts.output_tokens
        most_output = round(output.a) if output.is_fixed else output.at(0.999)
        template = None if calibration is None else calibration.template
        around = _UNKNOWN_TEMPLATE_TOKENS if template is None else template.overhead(system=True, users=1)
        bound = max(1, max_model_len - around - longest_system_tokens(prompts) - most_output)
    workload = SyntheticWorkload(
        prompts, calibration=calibration, endpoint=endpoint, population=population, max_user_tokens=bound
    )
    if max_model_len is not None:
        _check_smallest_fits(plan, workload, max_model_len)
    return workload


def _check_smallest_fits(plan: Plan, workload: SyntheticWorkload, max_model_len: int) -> None:
    # The packing experiment always has the unpacked shape; of larger ones it says itself what does not fit.
    users = 1 if plan.command == "shapes" else min(plan.prompts.users_per_request)
    prompt = workload.prompt(phase=Phase.WARMUP, level=0, index=0, users_per_request=users)
    tokens = fewest_tokens(prompt)
    if tokens + prompt.max_tokens > max_model_len:
        raise PlanError(
            f"a request of at least {tokens} prompt tokens and {prompt.max_tokens} output tokens cannot fit the model's "
            f"context of {max_model_len}; lower system-tokens, user-tokens, output-tokens or users-per-request"
        )


def _check_trace(plan: Plan, workload: TraceWorkload) -> None:
    held = workload.num_requests() or 0
    if held == 0:
        raise PlanError(
            f"{plan.prompts.dataset_path}: no request is left of the trace: {workload.num_too_long} exceed the model's "
            f"context, {workload.warmup} are the warm-up"
        )
    if workload.timed and plan.load.requests is not None and plan.load.requests > held:
        raise PlanError(
            f"requests: {plan.load.requests} are asked for, the trace holds {held} behind the warm-up"
        )
