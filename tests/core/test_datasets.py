"""Tests of distbench.core.datasets."""

from __future__ import annotations

import json
from typing import Any

import pytest

from distbench.core.datasets import Turn, read_jsonl, read_sharegpt
from distbench.errors import PlanError


def sharegpt(*conversations: Any) -> list[bytes]:
    """Return the lines of a ShareGPT file; a turn is "role: text"."""
    entries = [
        {"conversations": [dict(zip(("from", "value"), turn.split(": ", 1), strict=True)) for turn in turns]}
        for turns in conversations
    ]
    return json.dumps(entries, indent=1).encode().splitlines(keepends=True)


def test_sharegpt_oddities_give_the_prompts_that_were_asked() -> None:
    """C87: a leading answer is skipped, other role names are known, empty entries are counted with their reasons."""
    lines = [
        b'[{"conversations":[{"from":"gpt","value":"A"},{"from":"human","value":"Q"},{"from":"gpt","value":"B"}]},\n',
        b'{"conversations":[{"from":"human","value":""},{"from":"gpt","value":"x"}]},\n',
        b'{"conversations":[]},{"conversations":[{"from":"user","value":"Q2"}]}]',
    ]
    conversations, report = read_sharegpt(lines, "f.json")
    assert conversations == [[Turn((("user", "Q"),))], [Turn((("user", "Q2"),))]]
    assert str(report) == "4 read, 2 used, 2 skipped: 1 empty prompt, 1 empty"
    assert report.examples == ("entry 2: empty prompt", "entry 3: empty")


def test_sharegpt_keeps_later_turns_with_the_recorded_answers() -> None:
    """Each user turn is a request with all before it; a system turn at the start stays, one in the middle goes."""
    conversations, _ = read_sharegpt(
        sharegpt(["system: S", "human: Q1", "gpt: A1", "system: no", "human: Q2", "human: Q3", "gpt: A3"]),
        "f",
    )
    first = (("system", "S"), ("user", "Q1"))
    assert conversations == [
        [Turn(first), Turn((*first, ("assistant", "A1"), ("user", "Q2"), ("user", "Q3")))]
    ]


def test_sharegpt_uses_a_conversation_up_to_its_first_empty_turn() -> None:
    """An empty answer or question ends it; what came before is used."""
    conversations, report = read_sharegpt(sharegpt(["human: Q1", "gpt: ", "human: Q2"]), "f")
    assert conversations == [[Turn((("user", "Q1"),))]]
    assert report.used == 1


def test_sharegpt_may_be_one_conversation_a_line() -> None:
    """Blank lines and a byte-order mark are no rows; bad lines are named by their numbers."""
    lines = [
        b"\xef\xbb\xbf\n",
        b'{"conversation": [{"role": "user", "content": "Q"}]}\n',
        b"\n",
        b"{broken\n",
        b'"text"\n',
        b'{"conversations": [{"from": "alien", "value": "x"}]}\n',
        b'{"conversations": [{"from": "gpt", "value": "x"}]}\n',
    ]
    conversations, report = read_sharegpt(lines, "f")
    assert conversations == [[Turn((("user", "Q"),))]]
    assert (report.read, report.used) == (5, 1)
    assert report.examples == (
        "line 4: not JSON",
        "line 5: not an object",
        "line 6: with an unknown role",
        "line 7: without a user turn",
    )


def test_a_broken_array_is_an_error_with_its_line() -> None:
    """The file is named, and the line."""
    with pytest.raises(PlanError, match=r"^f\.json, line 3: not JSON"):
        read_sharegpt([b"[\n", b'{"conversations": []},\n', b"oops]\n"], "f.json")


@pytest.mark.parametrize("lines", [[], [b"\n"], [b"[]"], [b'[{"conversations": []}]'], [b"nonsense"]])
def test_a_file_of_which_nothing_is_left_is_an_error(lines: list[bytes]) -> None:
    """Said before the run, with the counts."""
    with pytest.raises(PlanError, match=r"^f: no row can be used: \d read, 0 used"):
        read_sharegpt(lines, "f")


def test_jsonl_rows_are_prompts_chats_or_conversations() -> None:
    """A row's own max_tokens stays with it; a chat is sent as it is, without a recorded answer at its end."""
    rows: list[dict[str, Any]] = [
        {"prompt": "P", "max_tokens": 7},
        {
            "messages": [
                {"role": "system", "content": "S"},
                {"role": "user", "content": [{"type": "text", "text": "U"}]},
            ]
        },
        {
            "messages": [{"role": "user", "content": "U"}, {"role": "assistant", "content": "A"}],
            "output_tokens": 3,
        },
        {"conversations": [{"from": "human", "value": "H"}], "max_tokens": 2},
    ]
    conversations, report = read_jsonl([json.dumps(row).encode() for row in rows], "f")
    assert conversations == [
        [Turn((("user", "P"),), 7)],
        [Turn((("system", "S"), ("user", "U")))],
        [Turn((("user", "U"),), 3)],
        [Turn((("user", "H"),), 2)],
    ]
    assert str(report) == "4 read, 4 used, 0 skipped"


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("{", "not JSON"),
        ("[1]", "not an object"),
        ('{"text": "x"}', "without prompt or messages"),
        ('{"prompt": " "}', "empty prompt"),
        ('{"prompt": null}', "empty prompt"),
        ('{"prompt": 5}', "with content that is no text"),
        ('{"prompt": "\\ud800"}', "with text that is no Unicode"),
        ('{"prompt": "x", "max_tokens": 0}', "with a max_tokens that is no number above 0"),
        ('{"prompt": "x", "max_tokens": true}', "with a max_tokens that is no number above 0"),
        ('{"messages": []}', "empty"),
        ('{"messages": [{"role": "alien", "content": "x"}]}', "with an unknown role"),
        ('{"messages": [{"role": "assistant", "content": "x"}]}', "without a user message"),
        ('{"messages": [{"role": "user", "content": ""}]}', "empty message"),
        ('{"messages": [{"role": ["user"], "content": "x"}]}', "with an unknown role"),
        pytest.param("9" * 5000, "not JSON", id="long number"),
        pytest.param("[" * 100_000, "not JSON", id="deep"),
    ],
)
def test_jsonl_rows_that_cannot_be_used_are_skipped_with_a_reason(row: str, reason: str) -> None:
    """The line is counted and named, the good one beside it is used."""
    conversations, report = read_jsonl([b'{"prompt": "good"}\n', row.encode()], "f")
    assert len(conversations) == 1
    assert report.skipped == ((reason, 1),)
    assert report.examples == (f"line 2: {reason}",)


def test_reasons_are_counted_and_the_first_examples_kept() -> None:
    """Most frequent reason first; five examples, however many rows are bad."""
    lines = [b'{"prompt": "x"}', *[b"bad"] * 9, b"{}"]
    _, report = read_jsonl(lines, "f")
    assert str(report) == "11 read, 1 used, 10 skipped: 9 not JSON, 1 without prompt or messages"
    assert report.examples == tuple(f"line {n}: not JSON" for n in range(2, 7))
