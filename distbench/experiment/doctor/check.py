"""
What the doctor says: one line a check, and what follows from all of them (floor F4, pure).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from distbench.errors import EXIT_INCOMPLETE, EXIT_OK, EXIT_TARGET

_MOST_NAMED = 4


class Status(StrEnum):
    """How a check came out, in rising order of harm."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Group(StrEnum):
    """What a check is about; the words are the headings."""

    MACHINE = "machine"
    CLUSTER = "cluster"
    TARGET = "target"
    LOAD = "load"


_RANK = {status: rank for rank, status in enumerate(Status)}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """
    One line.

    Attributes:
        name: What was looked at, in one or two words.
        status: How it came out.
        text: What was found, one sentence without its full stop.
        advice: What to do; None where nothing is to be done.
        values: The readings behind it, plain JSON values with the unit in their names.
        parts: The checks of the single machines or targets where this line sums up several of them, by their names.
    """

    name: str
    status: Status
    text: str
    advice: str | None = None
    values: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    parts: Mapping[str, Check] = dataclasses.field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        plain: dict[str, Any] = {
            "name": self.name,
            "status": self.status.value,
            "text": self.text,
            "advice": self.advice,
            "values": dict(self.values),
        }
        if self.parts:
            plain["parts"] = {name: part.to_json() for name, part in self.parts.items()}
        return plain


def ok(name: str, text: str, **values: Any) -> Check:
    """Return a check that found nothing wrong."""
    return Check(name=name, status=Status.OK, text=text, values=values)


def warn(name: str, text: str, advice: str, **values: Any) -> Check:
    """Return a check that found what will bend results, or may."""
    return Check(name=name, status=Status.WARN, text=text, advice=advice, values=values)


def fail(name: str, text: str, advice: str, **values: Any) -> Check:
    """Return a check that found what a run would end of."""
    return Check(name=name, status=Status.FAIL, text=text, advice=advice, values=values)


def split_advice(sentence: str, otherwise: str) -> tuple[str, str]:
    """Return (what, what to do) of a message that keeps them apart by its first semicolon; `otherwise` where it does not."""
    what, _, advice = sentence.partition("; ")
    return what, advice or otherwise


def sum_up(checks: Mapping[str, Check]) -> Check:
    """
    Return one line for the same check of several machines or targets: the worst of them, and whom it is true of.

    Args:
        checks: By the name of the machine or target, at least one, all of one check.
    """
    if len(checks) == 1:
        return next(iter(checks.values()))
    status = worst(list(checks.values()))
    concerned = {name: check for name, check in checks.items() if check.status is status}
    first_name, first = next(iter(concerned.items()))
    if status is Status.OK:
        text = f"{first.text} ({first_name}; {len(checks) - 1} more are well)"
    else:
        others = list(concerned)[1:]
        named = ", ".join(others[:_MOST_NAMED]) + (", ..." if len(others) > _MOST_NAMED else "")
        text = f"{first_name}: {first.text}" + (f" (likewise {named})" if others else "")
    return dataclasses.replace(first, text=text, parts=dict(checks))


def worst(checks: Sequence[Check]) -> Status:
    """Return the worst status of all checks; ok of none."""
    return max((check.status for check in checks), key=_RANK.__getitem__, default=Status.OK)


def exit_code(groups: Mapping[Group, Sequence[Check]]) -> int:
    """
    Return the exit code of a whole examination.

    A target that cannot be used comes before all else, as it does in a run: 4. Then anything else that fails: 1. Warnings are 0.
    """
    failed = {group for group, checks in groups.items() if worst(checks) is Status.FAIL}
    if Group.TARGET in failed:
        return EXIT_TARGET
    return EXIT_INCOMPLETE if failed else EXIT_OK


def closing_sentence(groups: Mapping[Group, Sequence[Check]]) -> str:
    """Return the last sentence: whether a run can begin, and what it would suffer from."""
    checks = [check for group in groups.values() for check in group]
    failed = [check.name for check in checks if check.status is Status.FAIL]
    warned = [check.name for check in checks if check.status is Status.WARN]
    if failed:
        return f"Not ready: {_enumerated(failed)} must be put right before a run is worth its time."
    asked = "" if groups.get(Group.TARGET) else " No target was given: name its URL to have it checked too."
    if warned:
        verb = "is" if len(warned) == 1 else "are"
        return f"Ready, but {_enumerated(warned)} {verb} worth a look: results may suffer.{asked}"
    return f"Ready: nothing stands against a run.{asked}"


def _enumerated(names: Sequence[str]) -> str:
    unique = list(dict.fromkeys(names))
    return unique[0] if len(unique) == 1 else f"{', '.join(unique[:-1])} and {unique[-1]}"
