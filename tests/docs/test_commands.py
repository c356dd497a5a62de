"""Every distbench command line in the README and in docs/ is one that the command line takes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from distbench.cli.main import cli

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def command_lines(page: Path) -> Iterator[list[str]]:
    """Yield the words after "distbench" of each command in the fenced blocks of a page; continued lines are joined."""
    for block in re.findall(
        r"^```(?:bash|sh|console)?\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL
    ):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True) if line.count("'") % 2 == 0 else line.split()
            names = [
                i for i, word in enumerate(words) if word.removeprefix("$").rsplit("/", 1)[-1] == "distbench"
            ]
            if names and names[0] <= 2 and len(words) > names[0] + 1:
                yield words[names[0] + 1 :]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_their_options_exist(page: Path) -> None:
    """The command is one of ours, and each of its options is one that it takes."""
    context = click.Context(cli)
    wrong = []
    for words in command_lines(page):
        command = cli.get_command(context, words[0])
        if words[0].startswith("-"):
            continue
        if command is None:
            wrong.append(" ".join(words))
            continue
        known = {opt for param in command.params for opt in [*param.opts, *param.secondary_opts]} | {
            "--help",
            "-h",
        }
        given = [word.split("=", 1)[0] for word in words[1:] if re.match(r"--[a-z]", word)]
        wrong += [f"{words[0]} {option}" for option in given if option not in known]
    assert wrong == []


def test_the_pages_name_enough_commands() -> None:
    """The rule above would hold for pages without a single command."""
    assert sum(1 for page in PAGES for _ in command_lines(page)) > 25
