"""
The options that run, capacity and shapes share (floor F5).

Each is a thin override of a plan field: no default stands here, the help reads it off the dataclass. Values are passed on as text
and read by core/plan_io.py, in the same words for flags and plan files; only what was given counts, so that a plan file is
overridden by flags and not by their defaults.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from distbench.core.plan import JudgePlan, LoadPlan, Plan, PromptPlan, TargetPlan, WherePlan
from distbench.core.plan_io import OPTIONS, build_plan
from distbench.errors import PlanError

_GROUPS = {
    "target": TargetPlan,
    "load": LoadPlan,
    "prompts": PromptPlan,
    "judging": JudgePlan,
    "where": WherePlan,
}

HELP: dict[str, tuple[str, str]] = {  # key -> (metavar, help); "" is a flag
    "model": ("NAME", "Model to ask for. Default: the only one that the server lists."),
    "endpoint": ("chat|completions", "API to call."),
    "no-stream": ("", "Ask for whole answers; measures E2E and rates only."),
    "no-usage": ("", "Do not ask for usage in streams (for servers that reject stream_options)."),
    "ignore-eos": ("", "Ask for exactly the wanted output tokens; dropped when the server refuses it."),
    "extra-body": ("JSON", "Object merged into every request's body."),
    "header": ("K=V", "Extra header, also 'K: V'; repeatable. Secret-looking values are never written."),
    "api-key-env": ("NAME", "Environment variable that holds the API key (never the key itself)."),
    "ca-file": ("PEM", "Roots to trust for https."),
    "insecure": ("", "Do not verify certificates."),
    "no-keepalive": ("", "Open a connection for every request."),
    "trust-env": ("", "Obey the proxy variables of the environment."),
    "timeout-connect": ("TIME", "Limit of connecting, TLS included; 'off' for none."),
    "timeout-first-token": ("TIME", "Limit from sending to the first token."),
    "timeout-idle": ("TIME", "Limit of silence within an answer."),
    "timeout-total": ("TIME", "Limit of a whole request."),
    "retries": ("N", "Resends of a request answered by 429 or 503."),
    "connections": ("N", "TOTAL connections over all clients; capacity also takes a list such as 1,8,64."),
    "start": ("N", "First number of connections."),
    "max": ("N", "Largest number of connections to try."),
    "factor": ("F", "Growth from level to level."),
    "repeats": (
        "N",
        "capacity: repeats of the levels around the best one. Default: 3; shapes: of every level. Default: 0.",
    ),
    "verify-client": ("", "Repeat the peak with twice the clients: proof that the client is not the limit."),
    "clients": ("K", "Load-generating processes. Default: from the cluster's CPUs and the load."),
    "requests": ("M", "TOTAL measured requests per level. Default: max(400, 8 x connections)."),
    "duration": ("TIME", "Time per level; with --requests, the first to end."),
    "warmup": ("M", "TOTAL warm-up requests per level, on top of --requests. Default: one per connection."),
    "max-failures": ("N", "End early after so many failed requests."),
    "pattern": (
        "burst|paced|constant|poisson|gamma|trace",
        "When requests are sent; burst keeps the queue full.",
    ),
    "rate": ("R", "Requests per second of constant, poisson and gamma, TOTAL."),
    "burstiness": ("B", "Shape of gamma: 1 is Poisson, below 1 burstier."),
    "batch-size": ("B", "Requests of a paced batch, TOTAL."),
    "batch-interval": ("TIME", "Time between the starts of paced batches."),
    "dataset": ("synthetic|sharegpt|jsonl|trace", "Where prompts come from."),
    "dataset-path": ("FILE", "File of the dataset."),
    "system-tokens": (
        "LENGTH",
        "Tokens of the system message: N, uniform:A:B, normal:M:SD or lognormal:M:S.",
    ),
    "user-tokens": ("LENGTH", "Tokens of each user message."),
    "output-tokens": ("LENGTH", "Output tokens to ask for per user message."),
    "users-per-request": ("N", "User messages packed into one request; shapes takes a list such as 1,2,4,8."),
    "prefix-groups": ("N", "Distinct system messages per level."),
    "think-time": ("TIME", "Pause between an answer and the next turn of a conversation (sharegpt, jsonl)."),
    "trace-speed": ("F", "Replay a trace F times as fast as it was recorded."),
    "tokenizer": (
        "NAME",
        "Local tokenizer for exact lengths (extra 'tokenizer'). Default: the server's own.",
    ),
    "seed": ("N", "Seed of all prompts and send times."),
    "slo": ("METRIC=TIME", "Bound such as ttft=500ms; repeatable (ttft, ttfo, tpot, icl, e2e, response)."),
    "no-metrics": ("", "Do not read the servers' /metrics."),
    "metrics-url": ("URL", "Where to read server metrics; repeatable. Default: /metrics of each target."),
    "gpu-metrics-url": ("URL", "DCGM-exporter endpoint; repeatable."),
    "output": ("DIR_OR_URI", "The run directory, absent or empty. Default: runs/<utc>-<hex>."),
    "ray-address": (
        "ADDRESS",
        "Ray cluster ('auto' on one of its nodes; 'none': no Ray). Default: a local Ray.",
    ),
    "http-client": ("fast|httpx", "Connection implementation; httpx is the slow reference."),
    "allow-fewer": ("", "Go on with fewer clients where the cluster has fewer places."),
    "client-resource": ("NAME", "Custom Ray resource that marks the hosts for clients."),
    "client-label": ("K=V", "Ray node label of the hosts for clients."),
    "clients-per-node": ("N", "At most so many clients on one node."),
}
_REPEATABLE = {"header", "slo", "metrics-url", "gpu-metrics-url"}


def load_options(command: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that gives a click command the URLs, the shared options and those of its own."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(OPTIONS):
            if option.key != "urls" and command in option.commands:
                function = click_option(option.key, option.group, option.field)(function)
        for decorator in reversed(_OWN):
            function = decorator(function)
        return click.argument("urls", nargs=-1, metavar="URL...")(function)

    return decorate


_OWN = (
    click.option("--plan", "plan_file", metavar="FILE.toml", help="Plan file; flags given beside it win."),
    click.option(
        "--dry-run", is_flag=True, help="Show the plan, a request and the estimated time; send no load."
    ),
    click.option("--quiet", is_flag=True, help="No progress; only the result."),
    click.option(
        "--json", "as_json", is_flag=True, help="One JSON object on stdout at the end; all else on stderr."
    ),
)


def click_option(key: str, group: str, field: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the decorator of one option: its metavar and help from HELP, its default from the plan's dataclass."""
    metavar, text = HELP[key]
    default = _default_text(group, field, text)
    if key == "ignore-eos":
        return click.option("--ignore-eos/--no-ignore-eos", "ignore_eos", default=None, help=text + default)
    name = key.replace("-", "_")
    if not metavar:
        return click.option(f"--{key}", name, is_flag=True, default=None, help=text)
    return click.option(f"--{key}", name, metavar=metavar, multiple=key in _REPEATABLE, help=text + default)


def _default_text(group: str, field: str, text: str) -> str:
    if "Default:" in text:
        return ""
    default = next(f.default for f in dataclasses.fields(_GROUPS[group]) if f.name == field)
    if default is dataclasses.MISSING or default == ():
        return ""
    if field.startswith("timeout_"):
        return f" [default: {'off' if default is None else f'{default:g}s'}]"
    if isinstance(default, bool):
        return f" [default: {'on' if default else 'off'}]"
    if isinstance(default, tuple):
        return f" [default: {','.join(map(str, default))}]"
    return "" if default is None else f" [default: {default}]"


# What may differ when a run is gone on with: secrets, which its plan does not hold, and where the clients are.
_RESUME_KEYS = {"header", "api-key-env", "ray-address"}


def resumed_plan(run: str, context: click.Context) -> Plan:
    """
    Build the plan of a run that is gone on with: its own, with masked headers given again.

    Raises:
        PlanError: an option was given that would make it another run. StoreError: there is no such run.
    """
    from distbench.store.reader import open_run

    flags = given_flags(context)
    other = sorted(set(flags) - _RESUME_KEYS)
    if other or context.params["plan_file"]:
        named = ", ".join("URL" if key == "urls" else f"--{key}" for key in other) or "--plan"
        raise PlanError([f"--resume takes the plan of the run; {named} would make it another one"])
    return build_plan("capacity", open_run(run).plan(), flags, file_name=f"{run}/plan.toml")


def plan_from_context(command: str, context: click.Context) -> Plan:
    """
    Build the plan of a command from its plan file and the flags that were given.

    Raises:
        PlanError: all problems of both.
    """
    plan_file = context.params["plan_file"]
    values = _read_plan_file(plan_file) if plan_file else {}
    return build_plan(command, values, given_flags(context), file_name=plan_file or "plan")


def given_flags(context: click.Context) -> dict[str, Any]:
    """Return plan key -> value of the options that stand on the command line; defaults are not among them."""
    flags: dict[str, Any] = {}
    for option in OPTIONS:
        name = option.key.replace("-", "_")
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            value = context.params[name]
            flags[option.key] = list(value) if isinstance(value, tuple) else value
    return flags


def _read_plan_file(path: str) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise PlanError([f"plan {path}: cannot be read: {error.strerror or error}"]) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PlanError([f"plan {path}: is not TOML: {error}"]) from None
