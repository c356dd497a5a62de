"""
Reading data sets of text: ShareGPT and JSON lines (floor F1; the file is opened by the caller).

Both end as conversations: lists of requests, each with the whole chat so far. A row that cannot be used is skipped with a reason and
counted; only a file of which nothing is left is an error.
"""

from __future__ import annotations

import collections
import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from distbench.core.content import Messages
from distbench.errors import PlanError

_USER_ROLES = frozenset({"human", "user", "prompter"})
_ASSISTANT_ROLES = frozenset({"gpt", "assistant", "chatgpt", "bing", "bard", "model"})
_SYSTEM_ROLES = frozenset({"system"})
_CHAT_ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})
_MAX_EXAMPLES = 5


@dataclasses.dataclass(frozen=True, slots=True)
class Turn:
    """
    One request of a conversation.

    Attributes:
        messages: All messages that it sends.
        max_tokens: Output tokens that the row asks for; None: the plan's.
    """

    messages: Messages
    max_tokens: int | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DatasetReport:
    """
    What became of the rows of a file.

    Attributes:
        read: Rows that are not blank.
        used: Rows that gave at least one request.
        skipped: (reason, count), most frequent first.
        examples: The first few skipped rows: "line 7: not JSON".
    """

    read: int
    used: int
    skipped: tuple[tuple[str, int], ...] = ()
    examples: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return one line: what was read, used, skipped, and why."""
        num_skipped = sum(count for _, count in self.skipped)
        reasons = ", ".join(f"{count} {reason}" for reason, count in self.skipped)
        return f"{self.read} read, {self.used} used, {num_skipped} skipped" + (
            f": {reasons}" if reasons else ""
        )


class SkipRow(Exception):
    """A row that cannot be used; the text is the reason, in a few words, equal for equal causes."""


class RowCounter:
    """Counts the rows of a file and keeps the first reasons."""

    def __init__(self, unit: str) -> None:
        self._unit = unit
        self._reasons: collections.Counter[str] = collections.Counter()
        self._examples: list[str] = []
        self._used = 0

    def use(self) -> None:
        """Count a row that is used."""
        self._used += 1

    def skip(self, number: int, reason: str) -> None:
        """Count a row that is not."""
        self._reasons[reason] += 1
        if len(self._examples) < _MAX_EXAMPLES:
            self._examples.append(f"{self._unit} {number}: {reason}")

    def report(self) -> DatasetReport:
        """Return the counts so far."""
        return DatasetReport(
            read=self._used + self._reasons.total(),
            used=self._used,
            skipped=tuple(self._reasons.most_common()),
            examples=tuple(self._examples),
        )

    def checked_report(self, path: str) -> DatasetReport:
        """
        Return the counts of a file that was read to its end.

        Raises:
            PlanError: no row can be used.
        """
        report = self.report()
        if report.used == 0:
            details = "; ".join(report.examples)
            raise PlanError(f"{path}: no row can be used: {report}" + (f" ({details})" if details else ""))
        return report


def read_sharegpt(lines: Iterable[bytes], path: str) -> tuple[list[list[Turn]], DatasetReport]:
    """
    Read ShareGPT: a JSON array of conversations, or one conversation a line.

    A conversation starts at its first user turn; a system turn before that is kept. Each user turn is a request with the recorded
    answers before it. A conversation is used up to the first turn that is empty.

    Args:
        lines: The file's lines.
        path: Named in errors.

    Returns:
        (conversations in the file's order, report); no conversation is empty.

    Raises:
        PlanError: no JSON, or nothing in it can be used.
    """
    unit, entries = _sharegpt_entries(lines, path)
    counter = RowCounter(unit)
    conversations = []
    for number, entry in entries:
        try:
            conversations.append(_conversation(_checked(entry)))
            counter.use()
        except SkipRow as skip:
            counter.skip(number, str(skip))
    return conversations, counter.checked_report(path)


def read_jsonl(lines: Iterable[bytes], path: str) -> tuple[list[list[Turn]], DatasetReport]:
    """
    Read JSON lines: each row has a prompt (a text), messages (a chat, sent as it is) or conversations (as in ShareGPT).

    "max_tokens" (or "output_tokens") of a row is the number of output tokens to ask for. A chat that ends with an answer is sent
    without it.

    Args, Returns, Raises: as read_sharegpt.
    """
    counter = RowCounter("line")
    conversations = []
    for number, entry in _json_lines(lines):
        try:
            conversations.append(_jsonl_row(_checked(entry)))
            counter.use()
        except SkipRow as skip:
            counter.skip(number, str(skip))
    return conversations, counter.checked_report(path)


def _json_lines(lines: Iterable[bytes]) -> Iterator[tuple[int, Any]]:
    """Yield (line number from 1, value or a SkipRow) for each line that is not blank."""
    for number, line in enumerate(lines, 1):
        text = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
        if not text.strip():
            continue
        try:
            yield number, json.loads(text)
        except (ValueError, RecursionError):
            yield number, SkipRow("not JSON")


def _sharegpt_entries(lines: Iterable[bytes], path: str) -> tuple[str, Iterator[tuple[int, Any]]]:
    """Return (what is counted, the entries with their numbers), for either form of the file."""
    iterator = iter(lines)
    head: list[bytes] = []
    for line in iterator:
        head.append(line)
        if line.strip(b"\xef\xbb\xbf \t\r\n"):
            break
    if not head or not head[-1].lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"["):
        return "line", _json_lines(_chain(head, iterator))
    try:
        data = json.loads(b"".join(_chain(head, iterator)).removeprefix(b"\xef\xbb\xbf"))
    except json.JSONDecodeError as error:
        raise PlanError(f"{path}, line {error.lineno}: not JSON: {error.msg}") from None
    except (ValueError, RecursionError) as error:
        raise PlanError(f"{path}: not JSON: {error}") from None
    return "entry", iter(enumerate(data, 1))


def _chain(head: Sequence[bytes], rest: Iterator[bytes]) -> Iterator[bytes]:
    yield from head
    yield from rest


def _checked(entry: Any) -> Mapping[str, Any]:
    if isinstance(entry, SkipRow):
        raise entry
    if not isinstance(entry, dict):
        raise SkipRow("not an object")
    return entry


def _jsonl_row(row: Mapping[str, Any]) -> list[Turn]:
    max_tokens = _max_tokens(row)
    if "prompt" in row:
        return [Turn((("user", _text(row["prompt"], "prompt")),), max_tokens)]
    if "messages" in row:
        return [Turn(_chat(row["messages"]), max_tokens)]
    if "conversations" in row or "conversation" in row:
        return [dataclasses.replace(turn, max_tokens=max_tokens) for turn in _conversation(row)]
    raise SkipRow("without prompt or messages")


def _max_tokens(row: Mapping[str, Any]) -> int | None:
    value = row.get("max_tokens", row.get("output_tokens"))
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise SkipRow("with a max_tokens that is no number above 0")
    return value


def _chat(value: Any) -> Messages:
    """Return a chat as it is to be sent."""
    if not isinstance(value, list) or not value:
        raise SkipRow("empty")
    messages = []
    for message in value:
        role = str(message.get("role")) if isinstance(message, dict) else ""
        if role not in _CHAT_ROLES:
            raise SkipRow("with an unknown role")
        messages.append((role, _text(message.get("content"), "message")))
    while messages and messages[-1][0] == "assistant":
        messages.pop()
    if not any(role == "user" for role, _ in messages):
        raise SkipRow("without a user message")
    return tuple(messages)


def _conversation(entry: Mapping[str, Any]) -> list[Turn]:
    """Return the requests of a recorded conversation."""
    turns = entry.get("conversations", entry.get("conversation"))
    if not isinstance(turns, list) or not turns:
        raise SkipRow("empty")
    history: list[tuple[str, str]] = []
    requests: list[Turn] = []
    waiting = False
    for turn in turns:
        role, text = _turn(turn)
        started = any(past == "user" for past, _ in history)
        if (role == "system" and (history or not text.strip())) or (role == "assistant" and not started):
            continue
        if not text.strip():
            break
        if role == "assistant" and waiting:
            requests.append(Turn(tuple(history)))
        history.append((role, text))
        waiting = role == "user"
    if waiting:
        requests.append(Turn(tuple(history)))
    if not requests:
        raise SkipRow("empty prompt" if any(_turn(t)[0] == "user" for t in turns) else "without a user turn")
    return requests


def _turn(turn: Any) -> tuple[str, str]:
    """Return (role, text) of a recorded turn, the role in the words of the API."""
    if not isinstance(turn, dict):
        raise SkipRow("with a turn that is no object")
    name = str(turn.get("from", turn.get("role", ""))).lower()
    for role, names in (
        ("user", _USER_ROLES),
        ("assistant", _ASSISTANT_ROLES),
        ("system", _SYSTEM_ROLES),
    ):
        if name in names:
            value = turn.get("value", turn.get("content", turn.get("text")))
            return role, "" if value is None else _valid(value)
    raise SkipRow("with an unknown role")


def _text(value: Any, what: str) -> str:
    text = _valid(value) if value is not None else ""
    if not text.strip():
        raise SkipRow(f"empty {what}")
    return text


def _valid(value: Any) -> str:
    """Return a text, also from a list of text parts as the API takes it."""
    if isinstance(value, list) and all(
        isinstance(part, dict) and part.get("type") == "text" for part in value
    ):
        value = "".join(str(part.get("text", "")) for part in value)
    if not isinstance(value, str):
        raise SkipRow("with content that is no text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise SkipRow("with text that is no Unicode") from None
    return value
