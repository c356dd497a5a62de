"""Tests of distbench.core.plan_io and distbench.core.plan_values: files, flags, and back."""

from __future__ import annotations

import dataclasses
import datetime
import tomllib
from typing import Any

import pytest
import tomli_w
from hypothesis import given, settings
from hypothesis import strategies as st

from distbench.core.lengths import LengthSpec
from distbench.core.plan import SLO_METRICS, Plan
from distbench.core.plan_io import MASK, OPTIONS, build_plan, is_secret_header, plan_to_table
from distbench.core.plan_values import read_headers
from distbench.errors import PlanError

URL = {"urls": ["http://h:1"]}


def problems(command: str = "run", file: dict[str, Any] | None = None, **flags: Any) -> tuple[str, ...]:
    """Return the problems of a plan; flags with underscores."""
    try:
        build_plan(
            command,
            {**URL, **(file or {})},
            {key.replace("_", "-"): v for key, v in flags.items()},
            file_name="p.toml",
        )
    except PlanError as error:
        return error.problems
    return ()


def reread(plan: Plan) -> Plan:
    """Write a plan as TOML and read it back."""
    return build_plan(plan.command, tomllib.loads(tomli_w.dumps(plan_to_table(plan))), {})


def test_flag_beats_file_beats_default() -> None:
    """Each setting from the strongest source that gives it."""
    plan = build_plan("run", {**URL, "requests": 100, "retries": 2}, {"requests": "7"})
    assert (plan.load.requests, plan.target.retries, plan.load.factor) == (7, 2, 2.0)


def test_every_option_names_a_field_of_its_group_once() -> None:
    """The table of options and the dataclasses cannot drift apart."""
    plan = build_plan("capacity", URL, {})
    of_groups = {
        (group, field.name)
        for group in ("target", "load", "prompts", "judging", "where")
        for field in dataclasses.fields(getattr(plan, group))
    }
    assert sorted((option.group, option.field) for option in OPTIONS) == sorted(of_groups)
    assert len({option.key for option in OPTIONS}) == len(OPTIONS)


def test_hyphens_underscores_and_aliases_are_the_same_keys() -> None:
    """Also the positive form of a negated key."""
    one = build_plan(
        "run", {"url": "http://h:1", "user_tokens": 9, "stream": False, "slos": {"e2e": "2s"}}, {}
    )
    two = build_plan(
        "run", {"urls": ["http://h:1/v1"], "user-tokens": "9", "no-stream": True, "slo": ["e2e=2000ms"]}, {}
    )
    assert one == two
    assert one.target.stream is False


def test_a_setting_given_twice_in_a_file_is_a_problem() -> None:
    """Which of the two counts cannot be seen."""
    assert problems(file={"no-stream": True, "stream": True}) == (
        "p.toml: stream and no-stream are the same setting; give one",
    )
    assert problems(file={"user_tokens": 1, "user-tokens": 2}) == (
        "p.toml: user-tokens and user_tokens are the same setting; give one",
    )


@pytest.mark.parametrize(
    ("key", "suggested"),
    [
        ("conections", "connections"),  # codespell:ignore conections
        ("user_token", "user-tokens"),
        ("strem", "stream"),  # codespell:ignore strem
        ("outputs", "output"),
    ],
)
def test_a_typo_is_told_with_what_was_meant(key: str, suggested: str) -> None:
    """Unknown keys are never ignored."""
    assert problems(file={key: 1}) == (f"p.toml: unknown key {key!r}; did you mean {suggested!r}?",)
    assert problems(file={"zzzz": 1}) == ("p.toml: unknown key 'zzzz'; see --help for the keys",)


def test_all_problems_of_all_sources_and_groups_are_told_at_once() -> None:
    """Unknown key, unreadable value in the file, unreadable flag, a group's check, and a contradiction between groups."""
    found = problems(
        file={
            "typpo": 1,  # codespell:ignore typpo
            "requests": "many",
            "no-stream": True,
            "slo": {"ttft": 1},
        },
        duration="soon",
        max_failures="0.5",
    )
    assert [problem.split()[0] for problem in found] == [
        "p.toml:",
        "p.toml:",
        "--duration",
        "--max-failures",
        "no-stream",
    ]
    found = problems(file={"clients": 0, "seed": 1.5}, dataset="jsonl", retries="-1")
    assert found == (
        "p.toml: seed needs a whole number, got 1.5",
        "retries must be at least 0, got -1",
        "clients must be at least 1, got 0",
        "dataset jsonl needs a dataset-path",
    )


def test_options_of_another_command_are_refused_in_both_sources() -> None:
    """What has no effect must not look as if it had."""
    assert problems("run", start="4") == ("--start does not belong to run",)
    assert problems("run", {"start": 4}) == ("p.toml: start does not belong to run",)
    assert problems("capacity", {"start": 4}) == ()


def test_a_plan_for_another_command_is_refused() -> None:
    """A written plan says what it is for."""
    assert problems("run", {"command": "capacity"}) == (
        "p.toml: this is a plan for 'capacity', not for 'run'",
    )
    assert problems("run", {"command": "run"}) == ()


@pytest.mark.parametrize(
    ("flag", "value", "problem"),
    [
        ("requests", True, "--requests needs a whole number, got True"),
        ("requests", 1.0, "--requests needs a whole number, got 1.0"),
        ("requests", "9" * 5000, "--requests needs a whole number"),
        ("connections", "", "--connections needs at least one number"),
        ("connections", ",", "--connections needs at least one number"),
        ("connections", "8,x", "--connections needs a whole number, got 'x'"),
        ("connections", [[8]], "--connections needs a whole number, got [8]"),
        ("factor", "two", "--factor needs a number, got 'two'"),
        ("factor", "nan", "factor must be more than 1, got nan"),
        ("duration", "-1", "--duration '-1' is not a duration; write it like 500ms, 1.5s, 2m or 1h"),
        ("duration", False, "--duration needs a number, got False"),
        ("no_stream", 1, "--no-stream needs true or false, got 1"),
        ("model", "", "--model needs a text, got ''"),
        ("model", 5, "--model needs a text, got 5"),
        ("user_tokens", 1.5, "--user-tokens needs a number of tokens or a distribution, got 1.5"),
        ("user_tokens", "zipf:1:2", "--user-tokens 'zipf:1:2' is not a number of tokens"),
        ("extra_body", "{", "--extra-body is not JSON"),
        ("extra_body", "[" * 100_000, "--extra-body is not JSON"),
        ("extra_body", "[1]", "--extra-body needs a JSON object"),
        ("extra_body", '{"a": NaN}', "--extra-body holds what JSON has not"),
        ("extra_body", {"a": datetime.date(2020, 1, 1)}, "--extra-body holds what JSON has not"),
        ("slo", "ttft", "--slo must be METRIC=LIMIT such as ttft=500ms, got 'ttft'"),
        ("slo", "speed=5", "--slo slo must be one of"),
        ("slo", "ttft=fast", "--slo 'fast' is not a duration"),
        ("header", "novalue", "--header must be K=V or 'K: V'"),
        ("header", "=v", "--header must be K=V or 'K: V'"),
        ("header", "a b=v", "--header has a name that HTTP does not allow: 'a b'"),
        ("header", "é=v", "--header has a name that HTTP does not allow: 'é'"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_wrong_values_are_told_in_words(flag: str, value: Any, problem: str) -> None:
    """The option, what it needs, what it got; never a traceback."""
    (found,) = problems("capacity", **{flag: value})
    assert found.startswith(problem)


def test_limits_are_durations_or_off() -> None:
    """0 and "off" are no limit; a TOML number is seconds."""
    for value, expected in (("off", None), (0, None), ("0", None), ("250ms", 0.25), (3, 3.0), ("2m", 120.0)):
        plan = build_plan("run", URL, {"timeout-idle": value})
        assert plan.target.timeout_idle_s == expected


@pytest.mark.parametrize("text", ["K=V", "K: V", "K:V", "K = V"])
def test_headers_have_two_spellings(text: str) -> None:
    """As a flag or as a line of HTTP; what stands first of = and : divides."""
    assert read_headers(text) == (("K", "V"),)


def test_header_values_keep_their_separators() -> None:
    """Only the first one divides."""
    assert read_headers(["A: x=y: z", "B=x: y"]) == (("A", "x=y: z"), ("B", "x: y"))


@pytest.mark.parametrize("value", ["a\r\nb", "a\nb", "a\0b", "é"])
def test_header_values_that_http_does_not_allow_are_refused_and_not_shown(value: str) -> None:
    """A line break would smuggle a header in; the value may be a secret."""
    (problem,) = problems(file={"header": {"X-Key": f"hunter2{value}"}})
    assert "hunter2" not in problem
    assert "'X-Key'" in problem


def test_secret_headers_are_masked_and_must_be_given_again() -> None:
    """A written plan repeats the run once the masked values are given; other headers of the file stay."""
    plan = build_plan("run", URL, {"header": ["Authorization: Bearer hunter2", "X-Trace=1"]})
    table = plan_to_table(plan)
    assert table["header"] == {"Authorization": MASK, "X-Trace": "1"}
    with pytest.raises(PlanError, match="header 'Authorization' was masked") as caught:
        build_plan("run", table, {})
    assert len(caught.value.problems) == 1
    again = build_plan("run", table, {"header": ["authorization: Bearer hunter2"]})
    assert again.target.headers == (("X-Trace", "1"), ("authorization", "Bearer hunter2"))


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("Authorization", True),
        ("X-Api-Key", True),
        ("Cookie", True),
        ("proxy-authorization", True),
        ("X-Auth-Token", True),
        ("X-Client-Secret", True),
        ("X-Trace", False),
        ("Accept", False),
    ],
)
def test_secret_looking_names(name: str, secret: bool) -> None:
    """By words in the name, whatever its case."""
    assert is_secret_header(name) is secret


def test_repeated_headers_are_written_as_lines() -> None:
    """A TOML table cannot hold a name twice."""
    plan = build_plan("run", URL, {"header": ["A=1", "A=2"]})
    assert plan_to_table(plan)["header"] == ["A: 1", "A: 2"]
    assert reread(plan) == plan


_lengths = st.one_of(
    st.integers(1, 10**6).map(lambda n: LengthSpec("fixed", float(n))),
    st.tuples(st.integers(1, 999), st.integers(1, 999)).map(
        lambda p: LengthSpec("uniform", float(min(p)), float(max(p)))
    ),
    st.builds(LengthSpec, st.sampled_from(["normal", "lognormal"]), st.floats(1, 1e6), st.floats(0, 10)),
)
_texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12)
_seconds = st.floats(1e-6, 1e6)
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_texts, inner, max_size=3),
    max_leaves=6,
)
_flags = st.fixed_dictionaries(
    {},
    optional={
        "model": _texts,
        "endpoint": st.sampled_from(["chat", "completions"]),
        "no-usage": st.booleans(),
        "ignore-eos": st.booleans(),
        "extra-body": st.dictionaries(_texts, _json, max_size=3),
        "header": st.lists(st.sampled_from(["A=1", "B: x = y", "A=3", "b=4", "c=:"]), max_size=3),
        "api-key-env": st.sampled_from(["KEY", "_k9"]),
        "timeout-connect": st.one_of(st.just("off"), _seconds),
        "timeout-total": st.one_of(st.just("off"), _seconds),
        "retries": st.integers(0, 5),
        "connections": st.lists(st.integers(1, 10**5), min_size=1, max_size=4),
        "start": st.integers(1, 9),
        "factor": st.floats(1.001, 100),
        "repeats": st.integers(0, 9),
        "verify-client": st.booleans(),
        "clients": st.integers(1, 99),
        "requests": st.integers(1, 10**9),
        "duration": _seconds,
        "warmup": st.integers(0, 99),
        "system-tokens": _lengths,
        "user-tokens": _lengths,
        "output-tokens": _lengths,
        "prefix-groups": st.integers(1, 99),
        "tokenizer": _texts,
        "seed": st.integers(-(2**80), 2**80),
        "slo": st.dictionaries(st.sampled_from(SLO_METRICS), _seconds, max_size=3),
        "no-metrics": st.booleans(),
        "gpu-metrics-url": st.just(["http://g:9400/metrics"]),
        "output": st.sampled_from(["runs/x", "s3://bucket/run"]),
        "ray-address": st.sampled_from(["auto", "none", "h:6379"]),
        "http-client": st.sampled_from(["fast", "httpx"]),
        "allow-fewer": st.booleans(),
        "clients-per-node": st.integers(1, 9),
    },
)


@settings(max_examples=40, deadline=None)
@given(_flags)
def test_a_written_plan_reads_back_to_an_equal_plan(flags: dict[str, Any]) -> None:
    """Plan -> table -> TOML -> table -> plan loses nothing: --plan RUN/plan.toml repeats the run."""
    plan = build_plan("capacity", URL, flags)
    assert reread(plan) == plan


@pytest.mark.parametrize(
    ("command", "flags"),
    [
        ("run", {"pattern": "gamma", "rate": 0.1, "burstiness": 1 / 3}),
        ("run", {"pattern": "paced", "batch-size": 4, "batch-interval": "250ms"}),
        ("run", {"dataset": "trace", "dataset-path": "t.csv", "pattern": "trace", "trace-speed": 2.5}),
        ("run", {"dataset": "sharegpt", "dataset-path": "s.json", "think-time": "1.5s", "no-stream": True}),
        ("shapes", {"users-per-request": "1,2,4,8", "connections": "64"}),
        ("run", {"client-label": "role=load", "insecure": True, "no-keepalive": True, "trust-env": True}),
        ("run", {"client-resource": "load", "ca-file": "ca.pem", "metrics-url": "http://h:1/metrics"}),
    ],
)
def test_written_plans_of_every_kind_read_back(command: str, flags: dict[str, Any]) -> None:
    """The settings that exclude each other, one combination each."""
    plan = build_plan(command, URL, flags)
    assert reread(plan) == plan


def test_a_written_plan_holds_no_null_and_no_empty_list() -> None:
    """TOML has no null; what is not set is left out, a limit that is off says so."""
    table = plan_to_table(build_plan("run", URL, {}))
    assert None not in table.values()
    assert [] not in table.values()
    assert table["timeout-total"] == "off"
    assert "requests" not in table
    assert "start" not in table
    assert (table["user-tokens"], table["urls"]) == (128, ["http://h:1/v1"])
