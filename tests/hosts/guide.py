"""The commands of docs/cluster.md, so that what is tested is what is written there."""

from __future__ import annotations

from tests.support.needs import ROOT


def commands() -> list[str]:
    """Return the lines of the first block of commands."""
    text = (ROOT / "docs/cluster.md").read_text()
    return text.split("```sh\n", 1)[1].split("```", 1)[0].splitlines()


def command(word: str) -> str:
    """Return the one line that holds a word."""
    found = [line for line in commands() if word in line]
    assert len(found) == 1, (word, found)
    return found[0]
