"""What surrounds a chunk's text: found where it is the only thing that can differ, and nowhere else."""

from __future__ import annotations

import json
from typing import Any

import pytest

from distbench.core.openai_api import TemplateFinder
from tests.core.answers import DONE, STOP, delta, event


def chunk(text: str, answer: str = "chatcmpl-1", **changes: Any) -> bytes:
    """Return a token's event in the shape of vLLM."""
    value = {
        "id": answer,
        "object": "chat.completion.chunk",
        "created": 7,
        "model": "m",
        "choices": [{"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": None}],
        **changes,
    }
    return b"data: " + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


AHEAD = b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":7,"model":"m","choices":[{"index":0,"delta":{"content":"'
BEHIND = b'"},"logprobs":null,"finish_reason":null}]}\n\n\r\n'


def test_all_but_the_text_is_the_template() -> None:
    """The end includes the CRLF behind the chunk."""
    assert TemplateFinder()(None, chunk(" hi")) == (AHEAD, BEHIND)


def test_the_last_of_several_events_counts() -> None:
    """Servers send the role and the first token together."""
    role = event(delta(role="assistant", content=""))
    assert TemplateFinder()(None, role + chunk(" hi")) == (AHEAD, BEHIND)
    assert TemplateFinder()(None, chunk(" hi") + role) is None


def test_another_answer_of_the_server_has_its_own_id_in_the_template() -> None:
    """Found by the bytes of the one before; an id that would end its string, or another second, is not taken for it."""
    find = TemplateFinder()
    assert find(None, chunk("a", "x-1")) is not None
    other = find(b"data: {}\n\n", chunk("b", "x-22"))
    assert other == (AHEAD.replace(b"chatcmpl-1", b"x-22"), BEHIND)
    assert find(None, chunk("c", created=8)) == (AHEAD.replace(b":7,", b":8,"), BEHIND)
    quoted = chunk("d", 'y"')
    assert find(None, quoted) == (AHEAD.replace(b"chatcmpl-1", b'y\\"'), BEHIND)


@pytest.mark.parametrize(
    "piece",
    [
        chunk(""),
        chunk("a\\b"),
        chunk('say "x"'),
        chunk("a", usage={"completion_tokens": 1}),
        chunk("a", choices=[{"index": 0, "delta": {"content": "a"}, "finish_reason": "stop"}]),
        chunk("a", choices=[{"index": 0, "delta": {"content": "a"}, "token_ids": [1]}]),
        chunk("a", choices=[{"index": 0, "delta": {"content": "a"}}, {"index": 1, "delta": {"content": "b"}}]),
        chunk("a", choices=[{"index": 0, "delta": {"content": "a", "reasoning": "b"}}]),
        chunk("a", choices=[{"index": 0, "delta": {"content": "a", "tool_calls": [{"index": 0}]}}]),
        chunk("a", error={"message": "no"}),
        chunk("a")[:-1],
        chunk("a").replace(b"\n\n", b"\r\n"),
        b": ping\n\n",
        event(STOP),
        DONE,
        b"data: {broken\n\n",
        b"",
    ],
)  # fmt: skip
def test_what_brings_anything_but_one_plain_text_has_no_template(piece: bytes) -> None:
    """Neither at first nor after one was found."""
    find = TemplateFinder()
    assert find(None, piece) is None
    find(None, chunk("a"))
    assert find(None, piece) is None


def test_within_an_event_there_is_no_template() -> None:
    """A piece that looks like an event continues the line before it."""
    assert TemplateFinder()(b"data: so far", chunk("a")) is None
    assert TemplateFinder()(b": comment\r\n\r\n", chunk("a")) is not None


@pytest.mark.parametrize("field", ["content", "reasoning_content", "reasoning"])
def test_reasoning_has_a_template_as_answers_have(field: str) -> None:
    """And a finder knows both at a time."""
    find = TemplateFinder()
    piece = chunk("", choices=[{"index": 0, "delta": {field: "why"}, "finish_reason": None}])
    ahead, behind = piece.split(b"why")
    assert find(None, piece) == (ahead, behind + b"\r\n")
    assert find(piece, chunk("a")) == (AHEAD, BEHIND)
    assert find(piece, piece) == (ahead, behind + b"\r\n")


def test_the_text_is_found_by_its_meaning_not_by_its_name() -> None:
    """A name that occurs earlier, in another string, does not mislead: no template rather than a wrong one."""
    piece = chunk("a", model='"content":"b')
    found = TemplateFinder()(None, piece)
    assert found is None or found[0] + b"a" + found[1] == piece + b"\r\n"
    text = chunk("", choices=[{"text": "a", "index": 0}])
    assert TemplateFinder()(None, text) is not None
