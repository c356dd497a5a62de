"""
The command line (floor F5): parse, call, print.

Commands live in modules of their own and are imported when they are named, so that ``distbench --help`` loads neither Ray nor
Arrow nor numpy. Every error that a user can cause ends here as one message with its exit code; a traceback goes to a file.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from typing import Any

import click

from distbench import __version__
from distbench.errors import EXIT_INCOMPLETE, EXIT_INTERRUPTED, EXIT_USAGE, DistbenchError, PlanError

# name -> (module, attribute, one line of help). The help stands here so that the list needs no import.
_COMMANDS: dict[str, tuple[str, str, str]] = {
    "run": (
        "distbench.cli.load",
        "run",
        "One level: a fixed number of connections, a fixed number of requests.",
    ),
    "capacity": (
        "distbench.cli.load",
        "capacity",
        "Step connections up past the peak, repeat around it, name the ceiling.",
    ),
    "shapes": (
        "distbench.cli.load",
        "shapes",
        "The same user messages packed 1, 2, 4, 8 per request: what packing does.",
    ),
    "report": (
        "distbench.cli.report",
        "report",
        "Tables and plain-language findings of a run; HTML on request.",
    ),
    "compare": ("distbench.cli.compare", "compare", "Differences between runs, with confidence intervals."),
    "export": ("distbench.cli.export", "export", "A run as one Parquet, CSV, JSONL or vllm-json file."),
    "sim": ("distbench.cli.sim", "sim", "The embedded vLLM-like server, to try things on."),
    "doctor": (
        "distbench.cli.doctor",
        "doctor",
        "Check this machine, the cluster and the target before time is spent.",
    ),
}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the table."""
        return [name for name, (module, _, _) in _COMMANDS.items() if importlib.util.find_spec(module)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one command; None for an unknown name."""
        entry = _COMMANDS.get(cmd_name)
        if entry is None:
            return None
        module, attribute, _ = entry
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands from the table, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, _COMMANDS[name][2]) for name in self.list_commands(ctx)])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="distbench")
def cli() -> None:
    """Find, and prove, what a large LLM deployment can carry."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with the code of its outcome."""
    sys.exit(invoke(arguments))


def invoke(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    return guarded(lambda: cli.main(args=arguments, prog_name="distbench", standalone_mode=False))


def guarded(command: Callable[[], Any]) -> int:
    """Call a command and return its exit code; every error becomes one message on stderr, never a traceback."""
    try:
        result = command()
    except click.exceptions.Exit as leave:
        return leave.exit_code
    except click.ClickException as error:
        error.show(sys.stderr)
        return EXIT_USAGE
    except (click.Abort, KeyboardInterrupt):
        click.echo("distbench: interrupted", err=True)
        return EXIT_INTERRUPTED
    except DistbenchError as error:
        _show(error)
        return error.exit_code
    except BrokenPipeError:
        return EXIT_INCOMPLETE
    except Exception as error:  # the border of the process: nothing may reach the user as a traceback
        click.echo(f"distbench: internal fault: {type(error).__name__}; {_keep_traceback()}", err=True)
        return EXIT_INCOMPLETE
    return result if isinstance(result, int) else 0


def _show(error: DistbenchError) -> None:
    problems = error.problems if isinstance(error, PlanError) else (str(error),)
    if len(problems) == 1:
        click.echo(f"distbench: {problems[0]}", err=True)
        return
    click.echo(f"distbench: {len(problems)} problems:", err=True)
    for problem in problems:
        click.echo(f"  - {problem}", err=True)


def _keep_traceback() -> str:
    import tempfile
    import traceback

    try:
        with tempfile.NamedTemporaryFile("w", prefix="distbench-fault-", suffix=".txt", delete=False) as file:
            file.write(traceback.format_exc())
        return f"details are in {file.name}; please report them"
    except OSError:
        return "its details could not be written"


if __name__ == "__main__":
    main()
