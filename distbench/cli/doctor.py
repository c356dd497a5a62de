"""distbench doctor (floor F5): checks before time is spent, one line each."""

from __future__ import annotations

import json
import os
import textwrap
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TextIO

import click
from rich.console import Console
from rich.text import Text

from distbench import __version__
from distbench.cli.options import click_option, given_flags
from distbench.cli.streams import claim_stdout
from distbench.core.plan_io import OPTIONS, build_plan

if TYPE_CHECKING:
    from distbench.experiment.doctor.check import Check, Group
    from distbench.experiment.doctor.examination import Examination

# Of the options of a run those that decide how the target and the cluster are reached, and how large the load is to be.
_SHARED = frozenset(
    {
        "model",
        "endpoint",
        "no-stream",
        "no-usage",
        "ignore-eos",
        "extra-body",
        "header",
        "api-key-env",
        "ca-file",
        "insecure",
        "trust-env",
        "timeout-connect",
        "timeout-first-token",
        "connections",
        "tokenizer",
        "no-metrics",
        "metrics-url",
        "gpu-metrics-url",
        "ray-address",
        "client-resource",
        "client-label",
        "clients-per-node",
    }
)
# The plan wants a target; without one nothing of the target is looked at, and this is never asked.
_STAND_IN = "http://127.0.0.1"
_HEADINGS = {
    "machine": "Machine",
    "cluster": "Ray",
    "target": "Target",
    "load": "Load",
}
_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}
_STATUS_WIDTH = 6
_NAME_WIDTH = 16
_LEAST_COLUMNS = 16
_NARROW = 64


def _shared_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(OPTIONS):
        if option.key in _SHARED:
            function = click_option(option.key, option.group, option.field)(function)
    return function


@click.command("doctor")
@click.argument("urls", nargs=-1, metavar="[URL...]")
@_shared_options
@click.option(
    "--expect-tokens-per-s",
    type=click.FloatRange(min=0, min_open=True),
    metavar="X",
    help="Output tokens per second that the target is thought to give, all requests together: how many clients it takes.",
)
@click.option("--ray", "try_ray", is_flag=True, help="Start a Ray on this machine too, as a run would.")
@click.option("--no-self-test", is_flag=True, help="Leave out the 5 s in which one client is measured.")
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON object on stdout at the end; all else on stderr."
)
@click.pass_context
def doctor(context: click.Context, /, **_: Any) -> int:
    """
    Check this machine, the cluster and the target before time is spent: one line each, and what to do.

    It sends a few requests, never load. Exit code 0: ready, warnings included; 1: this machine or the cluster is not; 4: the
    target cannot be used; 2: wrong options.
    """
    out = claim_stdout()
    order = _order(context)
    # What the checks need takes a second to import; nobody should wait for it to hear of a typo.
    from distbench.experiment.doctor.check import Group, exit_code
    from distbench.experiment.doctor.examination import examine

    groups: dict[Group, list[Check]] = {group: [] for group in Group}
    as_json = context.params["as_json"]
    errors = Console(stderr=True)
    with _view(Console(file=out, highlight=False), errors, groups, quiet=as_json) as view:
        for group, check in examine(order, os.environ, view.tell):
            groups[group].append(check)
            view.show(group.value, check)
    code = exit_code(groups)
    if as_json:
        _print_json(out, groups, code)
    return code


def _order(context: click.Context) -> Examination:
    from distbench.experiment.doctor.examination import Examination
    from distbench.experiment.doctor.self_test import DURATION_S

    params = context.params
    flags = given_flags(context)
    has_target = bool(params["urls"])
    plan = build_plan("run", {}, flags if has_target else {**flags, "urls": [_STAND_IN]})
    return Examination(
        plan=plan,
        has_target=has_target,
        expect_tokens_per_s=params["expect_tokens_per_s"],
        try_ray=params["try_ray"],
        self_test_s=0.0 if params["no_self_test"] else DURATION_S,
    )


class _Quiet:
    """Shows nothing but what is being done, on stderr."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.tell = tell

    def show(self, group: str, check: Check) -> None:
        """Show nothing."""


class _Lines(_Quiet):
    """Prints each line as it comes, under the heading of its group."""

    def __init__(self, console: Console, tell: Callable[[str], None]) -> None:
        super().__init__(tell)
        self._console = console
        # Into a file or a pipe goes one line each, for grep.
        self._width = console.width if console.is_terminal or "COLUMNS" in os.environ else None
        self._group = ""

    def show(self, group: str, check: Check) -> None:
        """Print a line."""
        if group != self._group:
            self._console.print(
                Text(f"\n{_HEADINGS[group]}" if self._group else _HEADINGS[group], style="bold")
            )
            self._group = group
        self._console.print(check_lines(check, self._width), soft_wrap=True)


@contextmanager
def _view(
    console: Console, errors: Console, groups: dict[Group, list[Check]], *, quiet: bool
) -> Iterator[_Quiet]:
    """Give what shows lines and stages; print the closing sentence at the end."""
    from distbench.experiment.doctor.check import closing_sentence, worst

    # Where lines and spinner share a terminal one of them must know of the other, or they are written over each other.
    teller = console if console.is_terminal and not quiet else errors
    spinner: AbstractContextManager[Any] = (
        teller.status("", spinner="dots") if teller.is_terminal else nullcontext()
    )
    with spinner as status:

        def tell(stage: str) -> None:
            if status is not None:
                status.update(f"{stage} ...")

        yield _Quiet(tell) if quiet else _Lines(console, tell)
    if not quiet:
        everything = [check for checks in groups.values() for check in checks]
        style = _STYLES[worst(everything).value]
        console.print(Text(f"\n{closing_sentence(groups)}", style=style), soft_wrap=not console.is_terminal)


def check_lines(check: Check, width: int | None) -> Text:
    """
    Return a check for a terminal: status, name, what was found; below it what to do.

    Args:
        check: The check.
        width: Columns of the terminal; in a narrow one the name stands in the text. None: no line is broken.
    """
    status = check.status.value
    head = Text(f"{status:<{_STATUS_WIDTH}}", style=_STYLES[status])
    text = check.text
    if width is not None and width < _NARROW:
        text = f"{check.name}: {text}"
    else:
        head.append(f"{check.name:<{_NAME_WIDTH}}", style="none")
    indent = len(head)
    lines = [Text(line) for line in _wrapped(text, width, indent)]
    if check.advice is not None:
        lines += [Text(line, style="cyan") for line in _wrapped(f"-> {check.advice}", width, indent)]
    return Text("\n").join([head + lines[0], *(Text(" " * indent) + line for line in lines[1:])])


def _wrapped(text: str, width: int | None, indent: int) -> list[str]:
    if width is None:
        return [text]
    return textwrap.wrap(text, max(_LEAST_COLUMNS, width - indent), break_on_hyphens=False)


def _print_json(out: TextIO, groups: dict[Group, list[Check]], code: int) -> None:
    from distbench.experiment.doctor.check import closing_sentence, worst

    everything = [check for checks in groups.values() for check in checks]
    value = {
        "schema": 1,
        "distbench": __version__,
        "status": worst(everything).value,
        "exit_code": code,
        "summary": closing_sentence(groups),
        "checks": [
            {"group": group.value, **check.to_json()} for group, checks in groups.items() for check in checks
        ],
    }
    out.write(json.dumps(value, allow_nan=False) + "\n")
