"""Request bodies, and the Retry-After header."""

from __future__ import annotations

import json
from typing import Any

import pytest

from distbench.core.openai_api import RequestEncoder, extra_body_problems, parse_retry_after
from distbench.errors import PlanError

MESSAGES = [{"role": "user", "content": 'h\u00e9 "q"'}]


def chat(max_tokens: int = 5, **settings: Any) -> dict[str, Any]:
    """Return the decoded body of a chat request."""
    settings.setdefault("model", "m")
    settings.setdefault("streaming", True)
    body: dict[str, Any] = json.loads(RequestEncoder(**settings).chat(MESSAGES, max_tokens))
    return body


def test_chat_request_has_these_fields_and_no_others() -> None:
    """The defaults of a streamed chat request."""
    assert chat() == {
        "model": "m",
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 5,
        "messages": MESSAGES,
    }


def test_usage_is_asked_only_in_streams() -> None:
    """stream_options goes with a stream and can be turned off (C25)."""
    assert "stream_options" not in chat(streaming=False)
    assert "stream_options" not in chat(include_usage=False)


def test_ignore_eos_is_sent_where_asked() -> None:
    """ignore_eos is a field of vLLM's and SGLang's; strict servers refuse it."""
    assert chat(ignore_eos=True)["ignore_eos"] is True
    assert "ignore_eos" not in chat()


def test_model_may_be_left_out() -> None:
    """Some servers serve one model and want no name."""
    assert "model" not in chat(model=None)


def test_completions_take_text_or_token_ids() -> None:
    """A prompt is a text or a list of ids."""
    encoder = RequestEncoder(model="m", streaming=False)
    assert json.loads(encoder.completion("a\nb", 3)) == {
        "model": "m",
        "stream": False,
        "max_tokens": 3,
        "prompt": "a\nb",
    }
    assert json.loads(encoder.completion([1, 2], 3))["prompt"] == [1, 2]


def test_extra_body_is_merged_last() -> None:
    """New fields are added, ours replaced, stream_options merged, null takes a field of ours out."""
    extra = {
        "temperature": 0.5,
        "ignore_eos": False,
        "stream_options": {"continuous_usage_stats": True},
        "stop": None,
    }
    body = chat(ignore_eos=True, extra_body=extra)
    assert body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert (body["temperature"], body["ignore_eos"], body["stop"]) == (0.5, False, None)
    assert "stream_options" not in chat(extra_body={"stream_options": None})


def test_length_field_can_be_replaced() -> None:
    """Servers that want max_completion_tokens get it, and no request bears both."""
    fixed = chat(extra_body={"max_completion_tokens": 9})
    assert (fixed.get("max_tokens"), fixed["max_completion_tokens"]) == (None, 9)
    own = chat(7, extra_body={"max_completion_tokens": "auto"})
    assert (own.get("max_tokens"), own["max_completion_tokens"]) == (None, 7)
    assert "max_tokens" not in chat(extra_body={"max_tokens": None})


@pytest.mark.parametrize(
    ("extra", "word"),
    [
        ({"messages": []}, "messages"),
        ({"prompt": "x"}, "prompt"),
        ({"stream": False}, "--no-stream"),
        ({"model": "x"}, "--model"),
        ({"max_tokens": 1, "max_completion_tokens": 1}, "exclude"),
        ({"stream_options": True}, "object"),
        ({"temperature": float("nan")}, "JSON"),
    ],
)
def test_extra_body_that_would_lie_is_refused(extra: dict[str, Any], word: str) -> None:
    """Fields that decide how requests are made or answers read are not to be slipped in."""
    assert word in " ".join(extra_body_problems(extra))
    with pytest.raises(PlanError, match=word):
        RequestEncoder(model="m", streaming=True, extra_body=extra)


def test_lone_surrogates_in_a_prompt_are_sent_as_escapes() -> None:
    """A dataset's broken text does not end the run."""
    body = RequestEncoder(model="m", streaming=True).chat([{"role": "user", "content": "\ud83d"}], 1)
    assert b"\\ud83d" in body


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        ("2", 2.0),
        (" 120 ", 120.0),
        ("1.5", 1.5),
        ("Fri, 01 Jan 2027 00:00:10 GMT", 10.0),
        ("Thu, 31 Dec 2026 23:59:50 GMT", 0.0),
        ("soon", None),
        ("-5", None),
        ("", None),
        ("99999999999999999999", None),
    ],
)
def test_retry_after_is_read_in_both_forms(value: str | None, expected: float | None) -> None:
    """Seconds or a date; a past date is now; anything else is none (C39)."""
    new_year_2027_s = 1798761600.0
    assert parse_retry_after(value, new_year_2027_s) == expected
