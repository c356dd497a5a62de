"""
Plans from files and flags, and back (floor F1; the text of the file is read by the caller).

Every setting has one row in OPTIONS: its plan key (the long option's name), the field it sets, how a value is read. Values come from
a TOML table or from flags; both go through the same readers, so that a number that is wrong is wrong in the same words.
Precedence: default < plan file < flag.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Callable, Mapping
from typing import Any

from distbench.core.plan import JudgePlan, LoadPlan, Plan, PromptPlan, TargetPlan, WherePlan
from distbench.core.plan_values import (
    read_bool,
    read_duration,
    read_float,
    read_headers,
    read_int,
    read_ints,
    read_json_object,
    read_length,
    read_limit,
    read_slos,
    read_str,
    read_strs,
)
from distbench.errors import PlanError

MASK = "***"
_SECRET_WORDS = ("authorization", "cookie", "key", "token", "secret", "password", "credential")


@dataclasses.dataclass(frozen=True, slots=True)
class Option:
    """
    One setting.

    Attributes:
        key: The plan key; the long option without its dashes.
        group: Name of the group in Plan.
        field: Name of the field in the group's dataclass.
        read: Turns a TOML value or a flag's text into the field's value; raises ValueError with the end of a sentence.
        negated: The key says the opposite of the field (no-stream).
        commands: Commands that take it.
    """

    key: str
    group: str
    field: str
    read: Callable[[Any], Any]
    negated: bool = False
    commands: tuple[str, ...] = ("run", "capacity", "shapes")


_CAPACITY = ("capacity",)

OPTIONS: tuple[Option, ...] = (
    Option("urls", "target", "urls", read_strs),
    Option("model", "target", "model", read_str),
    Option("endpoint", "target", "endpoint", read_str),
    Option("no-stream", "target", "stream", read_bool, negated=True),
    Option("no-usage", "target", "usage", read_bool, negated=True),
    Option("ignore-eos", "target", "ignore_eos", read_bool),
    Option("extra-body", "target", "extra_body", read_json_object),
    Option("header", "target", "headers", read_headers),
    Option("api-key-env", "target", "api_key_env", read_str),
    Option("ca-file", "target", "ca_file", read_str),
    Option("insecure", "target", "insecure", read_bool),
    Option("no-keepalive", "target", "keepalive", read_bool, negated=True),
    Option("trust-env", "target", "trust_env", read_bool),
    Option("timeout-connect", "target", "timeout_connect_s", read_limit),
    Option("timeout-first-token", "target", "timeout_first_token_s", read_limit),
    Option("timeout-idle", "target", "timeout_idle_s", read_limit),
    Option("timeout-total", "target", "timeout_total_s", read_limit),
    Option("retries", "target", "retries", read_int),
    Option("connections", "load", "connections", read_ints),
    Option("start", "load", "start", read_int, commands=_CAPACITY),
    Option("max", "load", "max_connections", read_int, commands=_CAPACITY),
    Option("factor", "load", "factor", read_float, commands=_CAPACITY),
    Option("repeats", "load", "repeats", read_int, commands=("capacity", "shapes")),
    Option("verify-client", "load", "verify_client", read_bool, commands=_CAPACITY),
    Option("clients", "load", "clients", read_int),
    Option("requests", "load", "requests", read_int),
    Option("duration", "load", "duration_s", read_duration),
    Option("warmup", "load", "warmup", read_int),
    Option("max-failures", "load", "max_failures", read_int),
    Option("pattern", "load", "pattern", read_str),
    Option("rate", "load", "rate_rps", read_float),
    Option("burstiness", "load", "burstiness", read_float),
    Option("batch-size", "load", "batch_size", read_int),
    Option("batch-interval", "load", "batch_interval_s", read_duration),
    Option("dataset", "prompts", "dataset", read_str),
    Option("dataset-path", "prompts", "dataset_path", read_str),
    Option("system-tokens", "prompts", "system_tokens", read_length),
    Option("user-tokens", "prompts", "user_tokens", read_length),
    Option("output-tokens", "prompts", "output_tokens", read_length),
    Option("users-per-request", "prompts", "users_per_request", read_ints),
    Option("prefix-groups", "prompts", "prefix_groups", read_int),
    Option("think-time", "prompts", "think_time_s", read_duration),
    Option("trace-speed", "prompts", "trace_speed", read_float),
    Option("tokenizer", "prompts", "tokenizer", read_str),
    Option("seed", "prompts", "seed", read_int),
    Option("slo", "judging", "slos", read_slos),
    Option("no-metrics", "judging", "metrics", read_bool, negated=True),
    Option("metrics-url", "judging", "metrics_urls", read_strs),
    Option("gpu-metrics-url", "judging", "gpu_metrics_urls", read_strs),
    Option("output", "where", "output", read_str),
    Option("ray-address", "where", "ray_address", read_str),
    Option("http-client", "where", "http_client", read_str),
    Option("allow-fewer", "where", "allow_fewer", read_bool),
    Option("client-resource", "where", "client_resource", read_str),
    Option("client-label", "where", "client_label", read_str),
    Option("clients-per-node", "where", "clients_per_node", read_int),
)

_GROUPS: dict[str, Callable[..., Any]] = {
    "target": TargetPlan,
    "load": LoadPlan,
    "prompts": PromptPlan,
    "judging": JudgePlan,
    "where": WherePlan,
}
# Other spellings that a plan file may use: hyphens and underscores are the same, and the positive form of a negated key is understood.
_ALIASES = {"url": "urls", "headers": "header", "slos": "slo", "metrics-urls": "metrics-url"}


def build_plan(
    command: str, file_values: Mapping[str, Any], flag_values: Mapping[str, Any], *, file_name: str = "plan"
) -> Plan:
    """
    Join a plan file and flags over the defaults.

    Args:
        command: run | capacity | shapes; a "command" key in the file must agree with it.
        file_values: The table of the plan file, as tomllib gives it; keys with hyphens or underscores.
        flag_values: Plan key -> value given on the command line; keys that were not given are absent.
        file_name: Named in problems of the file.

    Raises:
        PlanError: anything is wrong; it names every problem of both sources and all groups.
    """
    problems: list[str] = []
    from_file, from_flags = _empty_fields(), _empty_fields()
    _take_file(command, file_values, file_name, from_file, problems)
    _take_flags(command, flag_values, from_flags, problems)
    groups: dict[str, Any] = {}
    for name, make in _GROUPS.items():
        fields = {**from_file[name], **from_flags[name]}
        if name == "target":
            _join_headers(from_file[name], from_flags[name], fields, problems)
        try:
            groups[name] = make(**fields)
        except PlanError as error:
            problems.extend(error.problems)
    plan = None
    if len(groups) == len(_GROUPS):
        try:
            plan = Plan(command=command, **groups)
        except PlanError as error:
            problems.extend(error.problems)
    if plan is None or problems:
        raise PlanError(dict.fromkeys(problems))
    return plan


def _empty_fields() -> dict[str, dict[str, Any]]:
    return {group: {} for group in _GROUPS}


def _join_headers(
    from_file: Mapping[str, Any], from_flags: Mapping[str, Any], fields: dict[str, Any], problems: list[str]
) -> None:
    """Put the flags' headers over those of the file, name by name: a masked value can be given again without repeating the rest."""
    given = from_flags.get("headers", ())
    names = {name.lower() for name, _ in given}
    kept = [(name, text) for name, text in from_file.get("headers", ()) if name.lower() not in names]
    for name, text in kept:
        if text == MASK:
            problems.append(
                f"header {name!r} was masked when the plan was written; give its value again with --header"
            )
    if kept or given:
        fields["headers"] = (*kept, *given)


def _take_file(
    command: str,
    values: Mapping[str, Any],
    file_name: str,
    fields: dict[str, dict[str, Any]],
    problems: list[str],
) -> None:
    options = {option.key: option for option in OPTIONS}
    positives = {option.key.removeprefix("no-"): option for option in OPTIONS if option.negated}
    seen: dict[str, str] = {}
    for raw_key, value in values.items():
        key = _ALIASES.get(raw_key.replace("_", "-"), raw_key.replace("_", "-"))
        if key == "command":
            if value != command:
                problems.append(f"{file_name}: this is a plan for {value!r}, not for {command!r}")
            continue
        option, negated = options.get(key), None
        if option is None and key in positives:
            option, negated = positives[key], False
        if option is None:
            problems.append(f"{file_name}: unknown key {raw_key!r}{_suggestion(key, [*options, *positives])}")
            continue
        if command not in option.commands:
            problems.append(f"{file_name}: {raw_key} does not belong to {command}")
            continue
        if option.key in seen:
            problems.append(f"{file_name}: {raw_key} and {seen[option.key]} are the same setting; give one")
        seen[option.key] = raw_key
        _set(option, value, f"{file_name}: {raw_key}", fields, problems, negated=negated)


def _take_flags(
    command: str, values: Mapping[str, Any], fields: dict[str, dict[str, Any]], problems: list[str]
) -> None:
    options = {option.key: option for option in OPTIONS}
    for key, value in values.items():
        option = options[key]
        if command not in option.commands:
            problems.append(f"--{key} does not belong to {command}")
            continue
        _set(option, value, "url" if key == "urls" else f"--{key}", fields, problems)


def _set(
    option: Option,
    value: Any,
    origin: str,
    fields: dict[str, dict[str, Any]],
    problems: list[str],
    *,
    negated: bool | None = None,
) -> None:
    try:
        read = option.read(value)
    except ValueError as error:
        problems.append(f"{origin} {error}")
        return
    flip = option.negated if negated is None else negated
    fields[option.group][option.field] = (not read) if flip else read


def _suggestion(key: str, known: list[str]) -> str:
    close = difflib.get_close_matches(key, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else "; see --help for the keys"


def plan_to_table(plan: Plan) -> dict[str, Any]:
    """
    Return a plan as a TOML table that build_plan reads back to an equal plan.

    Settings at None are left out (TOML has no null; a time limit that is off is "off"); headers that look secret are masked.
    """
    table: dict[str, Any] = {"command": plan.command}
    for option in OPTIONS:
        if plan.command not in option.commands:
            continue
        value = getattr(getattr(plan, option.group), option.field)
        written = _to_toml(option, value)
        if written is not None:
            table[option.key] = written
    return table


def _to_toml(option: Option, value: Any) -> Any:
    if option.negated:
        return not value
    if option.read is read_limit:
        return "off" if value is None else value
    if option.read is read_length:
        return int(value.a) if value.kind == "fixed" else str(value)
    if option.read is read_headers:
        return _headers_to_toml(value) or None
    if option.read is read_slos:
        return {slo.metric: slo.limit_s for slo in value} or None
    if isinstance(value, tuple):
        return list(value) or None
    if option.read is read_json_object:
        return json.dumps(value) if value else None  # a text: TOML has no null
    return value


def _headers_to_toml(headers: tuple[tuple[str, str], ...]) -> dict[str, str] | list[str]:
    shown = [(name, MASK if is_secret_header(name) else text) for name, text in headers]
    table = dict(shown)
    # A table cannot repeat a name; a list of lines can.
    return table if len(table) == len(shown) else [f"{name}: {text}" for name, text in shown]


def is_secret_header(name: str) -> bool:
    """Return whether a header's value must never be written or shown."""
    lowered = name.lower()
    return any(word in lowered for word in _SECRET_WORDS)
