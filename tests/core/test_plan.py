"""Tests of distbench.core.plan: what each group refuses, in words, all at once."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import pytest

from distbench.core.lengths import LengthSpec
from distbench.core.plan import JudgePlan, LoadPlan, Plan, PromptPlan, Slo, TargetPlan, WherePlan
from distbench.errors import PlanError

URL = ("http://h:1",)
ZERO = LengthSpec("fixed", 0)


def problems(make: Any, **values: Any) -> tuple[str, ...]:
    """Return the problems of a group; empty where there are none."""
    try:
        make(**values)
    except PlanError as error:
        return error.problems
    return ()


def plan_problems(command: str = "run", **groups: Any) -> tuple[str, ...]:
    """Return the problems of a plan whose groups are all right."""
    return problems(Plan, command=command, **{"target": TargetPlan(urls=URL), "load": LoadPlan(), **groups})


def test_the_defaults_are_a_plan() -> None:
    """A target is all that has to be given."""
    assert problems(TargetPlan, urls=URL) == ()
    for group in (LoadPlan, PromptPlan, JudgePlan, WherePlan):
        assert problems(group) == ()
    for command in ("run", "capacity", "shapes"):
        assert plan_problems(command) == ()


def test_urls_are_normalized_and_distinct() -> None:
    """The four spellings of one target are one; the same target twice is a mistake."""
    spellings = ("http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/")
    assert {TargetPlan(urls=(url,)).urls for url in spellings} == {("http://h:1/v1",)}
    assert problems(TargetPlan, urls=("http://h:1", "http://h:1/v1")) == (
        "url: the same target is given twice; connections are spread evenly over distinct targets",
    )
    assert problems(TargetPlan) == ("no target: give at least one base URL, such as http://127.0.0.1:8000",)


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"endpoint": "chats"}, "endpoint must be one of chat, completions, got 'chats'"),
        ({"timeout_connect_s": 0.0}, "timeout-connect must be more than 0 s, got 0"),
        ({"timeout_first_token_s": -1.0}, "timeout-first-token must be more than 0 s, got -1"),
        ({"timeout_idle_s": float("nan")}, "timeout-idle must be more than 0 s, got nan"),
        ({"timeout_total_s": float("inf")}, "timeout-total must be more than 0 s, got inf"),
        ({"retries": -1}, "retries must be at least 0, got -1"),
        (
            {"insecure": True, "ca_file": "x"},
            "insecure and ca-file exclude each other: the first turns off what the second is for",
        ),
    ],
)
def test_target_problems(values: dict[str, Any], word: str) -> None:
    """Each names the option, the rule and what was given."""
    assert problems(TargetPlan, urls=URL, **values) == (word,)


@pytest.mark.parametrize("key", ["sk-abc-123", "Bearer x", "a b", "1KEY", "k=v"])
def test_a_key_in_place_of_its_variable_is_refused_and_not_shown(key: str) -> None:
    """The plan is written into the results: it must never hold the key."""
    (problem,) = problems(TargetPlan, urls=URL, api_key_env=key)
    assert "never the key itself" in problem
    assert key not in problem


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"connections": (0,)}, "connections must be at least 1, got 0"),
        ({"connections": (8, -1)}, "connections must be at least 1, got -1"),
        ({"start": 0}, "start must be at least 1, got 0"),
        ({"start": 64, "max_connections": 8}, "max (8) is below start (64)"),
        ({"factor": 1.0}, "factor must be more than 1, got 1"),
        ({"repeats": -1}, "repeats must be at least 0, got -1"),
        ({"clients": 0}, "clients must be at least 1, got 0"),
        ({"requests": 0}, "requests must be at least 1, got 0"),
        ({"duration_s": 0.0}, "duration must be more than 0 s, got 0"),
        ({"warmup": -1}, "warmup must be at least 0, got -1"),
        ({"max_failures": 0}, "max-failures must be at least 1, got 0"),
        (
            {"pattern": "sine"},
            "pattern must be one of burst, paced, constant, poisson, gamma, trace, got 'sine'",
        ),
        ({"pattern": "poisson"}, "pattern poisson needs a rate (requests per second over all clients)"),
        ({"pattern": "gamma", "rate_rps": 0.0}, "rate must be more than 0 requests/s, got 0"),
        ({"rate_rps": 5.0}, "rate has no meaning with pattern burst; choose constant, poisson or gamma"),
        ({"pattern": "paced"}, "pattern paced needs batch-size and batch-interval"),
        ({"batch_size": 4}, "batch-size and batch-interval have no meaning with pattern burst; choose paced"),
        ({"burstiness": 0.5}, "burstiness has no meaning with pattern burst; choose gamma"),
        ({"pattern": "gamma", "rate_rps": 1.0, "burstiness": 0.0}, "burstiness must be more than 0, got 0"),
    ],
)
def test_load_problems(values: dict[str, Any], word: str) -> None:
    """Each names the option, the rule and what was given."""
    assert problems(LoadPlan, **values) == (word,)


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"dataset": "web"}, "dataset must be one of synthetic, sharegpt, jsonl, trace, got 'web'"),
        (
            {"dataset_path": "f"},
            "dataset-path has no meaning with dataset synthetic; name the dataset (sharegpt, jsonl, trace)",
        ),
        ({"dataset": "jsonl"}, "dataset jsonl needs a dataset-path"),
        ({"user_tokens": ZERO}, "user-tokens must be at least 1"),
        ({"output_tokens": ZERO}, "output-tokens must be at least 1"),
        ({"users_per_request": ()}, "users-per-request needs at least one number"),
        ({"users_per_request": (1, 0)}, "users-per-request must be at least 1, got 0"),
        ({"prefix_groups": 0}, "prefix-groups must be at least 1, got 0"),
        (
            {"think_time_s": 1.0},
            "think-time has no meaning with dataset synthetic; choose sharegpt or jsonl",
        ),
        ({"trace_speed": 2.0}, "trace-speed has no meaning with dataset synthetic; choose trace"),
        (
            {"dataset": "trace", "dataset_path": "f", "users_per_request": (2,)},
            "users-per-request must be 1 with dataset trace: its requests are recorded as they are",
        ),
    ],
)
def test_prompt_problems(values: dict[str, Any], word: str) -> None:
    """Each names the option, the rule and what was given. A system message may be absent."""
    assert problems(PromptPlan, **values) == (word,)
    assert problems(PromptPlan, system_tokens=ZERO) == ()


def test_judging_problems_show_no_credentials() -> None:
    """Metrics URLs are whole and hold no password; SLOs are known, positive and given once."""
    assert problems(JudgePlan, slos=(Slo(metric="ttft", limit_s=1.0), Slo(metric="ttft", limit_s=2.0))) == (
        "slo ttft is given more than once",
    )
    assert problems(Slo, metric="latency", limit_s=0.0) == (
        "slo must be one of ttft, ttfo, tpot, icl, e2e, response, got 'latency'",
        "slo latency must be more than 0 s, got 0",
    )
    assert problems(JudgePlan, metrics=False, metrics_urls=("http://h/metrics",)) == (
        "no-metrics and metrics-url exclude each other",
    )
    for url in ("u:hunter2@h:1/metrics", "http://u:hunter2@h:1/metrics"):
        (problem,) = problems(JudgePlan, metrics_urls=(url,))
        assert "hunter2" not in problem


def test_where_problems() -> None:
    """The two ways to choose client hosts exclude each other; an output with a secret is refused without showing it."""
    assert problems(WherePlan, http_client="curl", clients_per_node=0, client_label="gpu") == (
        "http-client must be one of fast, httpx, got 'curl'",
        "clients-per-node must be at least 1, got 0",
        "client-label must be key=value, got 'gpu'",
    )
    assert problems(WherePlan, client_resource="load", client_label="a=b") == (
        "client-resource and client-label exclude each other: give one of them",
    )
    assert problems(WherePlan, output="s3://key:hunter2@bucket/run") == (
        "output must not hold a user or password: it is written into the results",
    )
    assert problems(WherePlan, output="s3://bucket/a@b") == ()


@pytest.mark.parametrize(
    ("command", "groups", "word"),
    [
        ("walk", {}, "command must be one of run, capacity, shapes, got 'walk'"),
        (
            "run",
            {"load": LoadPlan(connections=(1, 2))},
            "run takes one number of connections; capacity takes a list",
        ),
        (
            "run",
            {"prompts": PromptPlan(users_per_request=(1, 2))},
            "run takes one number of users-per-request; shapes takes a list",
        ),
        (
            "capacity",
            {"load": LoadPlan(pattern="constant", rate_rps=1.0)},
            "capacity finds what the server can carry: only pattern burst keeps its queue full",
        ),
        (
            "shapes",
            {"prompts": PromptPlan(dataset="trace", dataset_path="f")},
            "shapes packs user messages; the requests of dataset trace are recorded as they are",
        ),
        (
            "run",
            {"load": LoadPlan(pattern="trace")},
            "pattern trace needs dataset trace: its timestamps are the schedule",
        ),
        (
            "run",
            {
                "target": TargetPlan(urls=URL, stream=False),
                "judging": JudgePlan(slos=(Slo(metric="tpot", limit_s=1.0),)),
            },
            "no-stream measures no ttft, ttfo, tpot or icl: such an SLO could never be met",
        ),
    ],
)
def test_problems_between_groups(command: str, groups: dict[str, Any], word: str) -> None:
    """Groups that are right each may contradict each other."""
    assert plan_problems(command, **groups) == (word,)


def test_all_problems_of_a_group_are_told_at_once() -> None:
    """Five mistakes, five sentences."""
    assert len(problems(LoadPlan, start=0, factor=0.5, repeats=-1, requests=0, pattern="x")) == 5


def test_a_plan_cannot_be_changed_and_survives_pickle() -> None:
    """It is handed to every part and every client as it is; header values are not in its text."""
    plan = Plan(
        command="run", target=TargetPlan(urls=URL, headers=(("Authorization", "hunter2"),)), load=LoadPlan()
    )
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.load.requests = 5  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(plan)) == plan
    assert "hunter2" not in repr(plan)
