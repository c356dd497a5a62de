"""Bodies as the settings want them; answers as rows want them."""

import dataclasses
import json
from array import array
from typing import Any

import pytest

from distbench.client.codec import Codec
from distbench.client.messages import RequestSettings
from distbench.core.prompts import Prompt
from distbench.core.records import ErrorKind
from distbench.wire.base import Exchange
from tests.client.load_server import event, last_events
from tests.client.plans import request_settings


def settings(**changes: Any) -> RequestSettings:
    """Return a streamed chat request's settings."""
    return dataclasses.replace(request_settings(), **changes)


PROMPT = Prompt(messages=(("system", "be brief"), ("user", "hi")), max_tokens=7, prompt_id=1)


def test_chat_bodies_hold_the_messages() -> None:
    """Role and content, in order; the length per request."""
    body = json.loads(Codec(settings(extra_body={"temperature": 0})).encode(PROMPT))
    assert body == {
        "model": "m",
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
        "temperature": 0,
        "max_tokens": 7,
        "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}],
    }


def test_completions_bodies_join_the_contents_or_hold_token_ids() -> None:
    """Blank lines between the messages."""
    codec = Codec(settings(endpoint="completions", stream=False, ignore_eos=False))
    assert json.loads(codec.encode(PROMPT)) == {
        "model": "m", "stream": False, "max_tokens": 7, "prompt": "be brief\n\nhi",
    }  # fmt: skip
    with_ids = dataclasses.replace(PROMPT, messages=(), token_ids=(1, 2, 3))
    assert json.loads(codec.encode(with_ids))["prompt"] == [1, 2, 3]


def test_a_wire_failure_is_the_answers_failure_unless_the_server_told_of_one() -> None:
    """The server's own word says more."""
    codec = Codec(settings())
    broken = Exchange(
        status=200,
        error_kind=ErrorKind.RESET,
        error_text="reset",
        body=[event("a")],
        stamps_ns=array("q", [5]),
    )
    answer = codec.read(broken)
    assert (answer.error_kind, answer.error_text, list(answer.chunk_ns)) == (ErrorKind.RESET, "reset", [5])
    told = b'data: {"error":{"message":"engine died","code":500}}\n\n'
    answer = codec.read(dataclasses.replace(broken, body=[event("a"), told], stamps_ns=array("q", [5, 6])))
    assert answer.error_kind is ErrorKind.STREAM_ERROR


@pytest.mark.parametrize("streaming", [True, False])
def test_a_token_is_seen_in_a_stream_and_any_byte_elsewhere(streaming: bool) -> None:
    """A stream's role chunk is no token."""
    codec = Codec(settings(stream=streaming))
    assert codec.token_seen([event("")]) is not streaming
    assert codec.token_seen([event("a")])


def test_columns_of_a_stream_hold_its_chunk_times_and_the_servers_own_times() -> None:
    """VLLM's per-request metrics are milliseconds; the columns are microseconds."""
    usage = b'data: {"choices":[],"metrics":{"time_to_first_token_ms":8.5,"queue_time_ms":0.02}}\n\n'
    exchange = Exchange(
        status=200, complete=True, body=[event("a"), usage, last_events(1)], stamps_ns=array("q", [5, 6, 7])
    )
    codec = Codec(settings())
    columns = codec.columns(codec.read(exchange))
    assert list(columns["chunk_ns"]) == [5]
    assert (columns["first_token_ns"], columns["completion_tokens"], columns["finish_reason"]) == (
        5,
        1,
        "length",
    )
    assert (columns["server_ttft_us"], columns["server_queue_us"]) == (8500, 20)


def test_columns_of_a_whole_answer_have_no_chunk_times() -> None:
    """Null, not an empty list: it was not a stream."""
    body = b'{"choices":[{"index":0,"message":{"content":"a"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":2}}'
    exchange = Exchange(
        status=200,
        complete=True,
        body=[body],
        stamps_ns=array("q", [9]),
        headers={"content-type": "application/json"},
    )
    codec = Codec(settings(stream=False))
    columns = codec.columns(codec.read(exchange))
    assert (columns["chunk_ns"], columns["completion_tokens"], columns["last_token_ns"]) == (None, 2, 9)
