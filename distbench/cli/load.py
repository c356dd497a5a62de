"""distbench run, capacity and shapes (floor F5): the commands that send load."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, TextIO

import click
from rich.console import Console

from distbench.cli.options import load_options, plan_from_context, resumed_plan
from distbench.cli.streams import claim_stdout

if TYPE_CHECKING:
    from distbench.experiment.result import RunResult


@click.command("run")
@load_options("run")
@click.pass_context
def run(context: click.Context, /, **_: Any) -> int:
    """Measure one level: a fixed TOTAL of connections and of requests, all connections busy until the pool is empty."""
    return _execute("run", context)


@click.command("capacity")
@load_options("capacity")
@click.option("--resume", metavar="RUN", help="Go on with an interrupted run directory; its plan counts.")
@click.pass_context
def capacity(context: click.Context, /, **_: Any) -> int:
    """Find the ceiling: step connections up until more of them make it worse, then repeat around the best."""
    return _execute("capacity", context)


@click.command("shapes")
@load_options("shapes")
@click.pass_context
def shapes(context: click.Context, /, **_: Any) -> int:
    """Compare packings: the same user messages sent 1, 2, 4, 8, ... per request."""
    return _execute("shapes", context)


def _execute(command: str, context: click.Context) -> int:
    params = context.params
    out = claim_stdout()
    resume = params.get("resume")
    plan = plan_from_context(command, context) if resume is None else resumed_plan(resume, context)
    # Arrow and the rest take a second to import; nobody should wait for them to hear of a typo.
    from distbench.cli.live import make_observer
    from distbench.experiment.commands import resume_run, run_plan
    from distbench.experiment.dry_run import describe_plan

    if params["dry_run"]:
        _print(out, describe_plan(plan), as_json=params["as_json"])
        return 0
    quiet = params["quiet"] or params["as_json"]
    with make_observer(Console(stderr=True), quiet=quiet, shapes=command == "shapes") as observer:
        if resume is None:
            result = run_plan(plan, observer, environ=os.environ)
        else:
            result = resume_run(resume, plan, observer, environ=os.environ)
    if params["as_json"]:
        _print(out, result.to_json(), as_json=True)
    else:
        show_result(result, Console(file=out))
    return result.exit_code


def show_result(result: RunResult, console: Console) -> None:
    """Print the last screen of a run."""
    from distbench.report.terminal import run_block

    block = run_block(result.rows, result.findings, result.errors, result.notes, console.width)
    console.print(block, highlight=False)
    console.print(f"\n{result.status}; everything is in {result.run}", highlight=False, soft_wrap=True)
    console.print(f"  distbench report {result.run} --html report.html", highlight=False, soft_wrap=True)


def _print(out: TextIO, value: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        out.write(json.dumps(value, allow_nan=False) + "\n")
        return
    for key, item in value.items():
        text = item if isinstance(item, str) else json.dumps(item, indent=2, allow_nan=False)
        out.write(f"{key}: {text}\n")
