"""What answers mean where they fail: errors in streams, ends, refusals, things that are no answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from distbench.core.records import MAX_ERROR_TEXT, ErrorKind
from tests.core.answers import DONE, MS, STOP, A, delta, event, read

OVERFLOW = "This model's maximum context length is 4096 tokens. However, your prompt has 5000."
IN_STREAM = [
    (
        "object",
        [event({"error": {"message": "engine dead", "code": 500}})],
        ErrorKind.STREAM_ERROR,
        "code 500: engine dead",
    ),
    ("string", [event({"error": "engine dead"})], ErrorKind.STREAM_ERROR, "engine dead"),
    (
        "event: error",
        [b'event: error\ndata: {"message":"engine dead"}\n\n'],
        ErrorKind.STREAM_ERROR,
        "engine dead",
    ),
    ("event: error, plain", [b"event: error\ndata: engine dead\n\n"], ErrorKind.STREAM_ERROR, "engine dead"),
    (
        "object: error",
        [event({"object": "error", "message": "engine dead", "code": 7})],
        ErrorKind.STREAM_ERROR,
        "code 7: engine dead",
    ),
    (
        "beside choices",
        [event({**STOP, "error": {"message": "engine dead"}})],
        ErrorKind.STREAM_ERROR,
        "engine dead",
    ),
    (
        "finish_reason error",
        [event({"choices": [{"delta": {}, "finish_reason": "error"}]})],
        ErrorKind.STREAM_ERROR,
        "finish_reason 'error'",
    ),
    (
        "overflow",
        [event({"error": {"message": OVERFLOW}})],
        ErrorKind.CONTEXT_OVERFLOW,
        "maximum context length",
    ),
    ("not json", [b"data: {broken\n\n"], ErrorKind.PROTOCOL, "{broken"),
]


@pytest.mark.parametrize(
    ("pieces", "kind", "text"), [r[1:] for r in IN_STREAM], ids=[r[0] for r in IN_STREAM]
)
@pytest.mark.parametrize("num_before", [0, 2])
def test_error_inside_a_stream_is_a_failure(
    num_before: int, pieces: list[bytes], kind: ErrorKind, text: str
) -> None:
    """An error under status 200 fails the request, first or after tokens; the tokens are kept apart (C36)."""
    answer = read(*[A] * num_before, *pieces, DONE)
    assert answer.error_kind is kind
    assert text in (answer.error_text or "")
    assert len(answer.chunk_ns) == num_before


ENDS = [
    ("done only", [A, DONE], None),
    ("finish only", [A, STOP], None),
    ("usage only", [A, {"choices": [], "usage": {"completion_tokens": 1}}], None),
    ("done without its blank line", [A, b"data: [DONE]"], None),
    ("finish without its blank line", [A, event(STOP).rstrip()], None),
    ("nothing", [A, A], ErrorKind.TRUNCATED),
    ("running usage is no end", [{**A, "usage": {"completion_tokens": 1}}], ErrorKind.TRUNCATED),
    ("cut in an event", [A, b'data: {"choi'], ErrorKind.TRUNCATED),
    ("role only", [delta(role="assistant", content="")], ErrorKind.TRUNCATED),
    ("done without a token", [DONE], ErrorKind.EMPTY),
    ("finish without a token", [delta(content=""), STOP, DONE], ErrorKind.EMPTY),
    ("zero tokens", [STOP, {"choices": [], "usage": {"completion_tokens": 0}}, DONE], ErrorKind.EMPTY),
    ("no bytes", [], ErrorKind.EMPTY),
    ("pings only", [b": ping\n\n"], ErrorKind.EMPTY),
    ("tokens without text", [STOP, {"choices": [], "usage": {"completion_tokens": 1}}, DONE], None),
]


@pytest.mark.parametrize(("pieces", "kind"), [r[1:] for r in ENDS], ids=[r[0] for r in ENDS])
def test_end_of_a_stream(pieces: list[Any], kind: ErrorKind | None) -> None:
    """A stream is whole where the server said so, truncated where it did not, empty where nothing was generated."""
    answer = read(*pieces)
    assert answer.error_kind is kind
    assert (answer.error_text is None) == (kind is None)


def test_answer_cut_by_the_wire_is_not_judged() -> None:
    """What the wire broke off is the wire's failure; the tokens are kept."""
    answer = read((3, A), complete=False)
    assert (answer.error_kind, answer.first_token_ns) == (None, 3 * MS)


NOT_STREAMS = [
    ("json", b'{"choices":[{"message":{"content":"hi"}}]}', ErrorKind.NOT_SSE, "application/json"),
    ("json with an error", b'\n {"error":{"message":"engine dead"}}', ErrorKind.STREAM_ERROR, "engine dead"),
    ("json lines", b'{"message":{"content":"a"}}\n{"done":true}\n', ErrorKind.NOT_SSE, "application/json"),
    ("html", b"<html><script>x()</script><h1>Log&nbsp;in</h1></html>", ErrorKind.NOT_SSE, "Log in"),
    ("text", b"hello\nworld\n", ErrorKind.NOT_SSE, "hello world"),
]


@pytest.mark.parametrize(
    ("body", "kind", "text"), [r[1:] for r in NOT_STREAMS], ids=[r[0] for r in NOT_STREAMS]
)
def test_something_else_than_a_stream(body: bytes, kind: ErrorKind, text: str) -> None:
    """An answer that is no stream where one was asked for says what it is, whole or byte by byte."""
    for pieces in ([body], [bytes([b]) for b in body]):
        answer = read(*pieces, content_type="application/json")
        assert answer.error_kind is kind
        assert text in (answer.error_text or "")


def test_stream_under_a_wrong_content_type_is_read() -> None:
    """Bytes decide, not the header: some servers send streams as text/plain."""
    assert read(A, STOP, DONE, content_type="text/plain").error_kind is None


def test_whole_answer_has_no_token_times_but_the_last() -> None:
    """Without streaming TTFT is not measured, and the end is that of the body (C33)."""
    message = {
        "message": {"content": "hi", "tool_calls": [{"id": "a"}, {"id": "b"}]},
        "finish_reason": "stop",
    }
    body = json.dumps({"choices": [message], "usage": {"prompt_tokens": 3, "completion_tokens": 40}}).encode()
    answer = read((200, body[:20]), (2000, body[20:]), streaming=False)
    assert (answer.error_kind, answer.first_token_ns, answer.first_answer_ns) == (None, None, None)
    assert (answer.last_token_ns, answer.completion_tokens, answer.tool_calls) == (2000 * MS, 40, 2)
    assert (list(answer.chunk_ns), answer.chunk_tokens, answer.text) == ([], None, "hi")


WHOLE = [
    (b'{"choices":[{"text":"x"}]}', None),
    (b'{"choices":[{"message":{"content":""},"finish_reason":"stop"}]}', ErrorKind.EMPTY),
    (b'{"choices":[]}', ErrorKind.EMPTY),
    (b"", ErrorKind.EMPTY),
    (b'{"error":{"message":"no"}}', ErrorKind.STREAM_ERROR),
    (b'data: {"choices":[]}\n\n', ErrorKind.PROTOCOL),
    (b"<html>hi</html>", ErrorKind.PROTOCOL),
    (b'{"choices":[{"message":{"content":"\\ud83d NaN"}}],"x":NaN}', None),
]


@pytest.mark.parametrize(("body", "kind"), WHOLE)
def test_whole_answers(body: bytes, kind: ErrorKind | None) -> None:
    """Answers that were not asked to be streamed."""
    assert read(body, streaming=False).error_kind is kind


REFUSALS = [
    (401, b'{"error":"Unauthorized"}', ErrorKind.HTTP_4XX, "HTTP 401: Unauthorized"),
    (404, b'{"detail":"Not Found"}', ErrorKind.HTTP_4XX, "HTTP 404: Not Found"),
    (422, b'{"detail":[{"loc":["body","model"],"msg":"field required"}]}', ErrorKind.HTTP_4XX, "HTTP 422: body.model: field required"),
    (400, b'{"error":{"message":"unknown field stream_options"}}', ErrorKind.HTTP_4XX, "HTTP 400: unknown field stream_options"),
    (429, b'{"error":{"message":"slow down","code":"rate_limit"}}', ErrorKind.RATE_LIMITED, "HTTP 429: code rate_limit: slow down"),
    (503, b'{"error":{"message":"busy","code":503}}', ErrorKind.HTTP_5XX, "HTTP 503: busy"),
    (500, b"Internal Server Error", ErrorKind.HTTP_5XX, "HTTP 500: Internal Server Error"),
    (502, b"<html><head><title>502</title></head><body><h1>Bad Gateway</h1></body></html>", ErrorKind.HTTP_5XX, "HTTP 502: 502 Bad Gateway"),
    (500, b"", ErrorKind.HTTP_5XX, "HTTP 500 without a text"),
    (400, b'{"message":"bad","x":"\\ud800"}', ErrorKind.HTTP_4XX, "HTTP 400: bad"),
    (400, b'{"error":"' + b"x" * 900 + b'"}', ErrorKind.HTTP_4XX, "HTTP 400: xxx"),
    (400, b"\xff\x00\xfe", ErrorKind.HTTP_4XX, "HTTP 400: "),
]  # fmt: skip


@pytest.mark.parametrize(("status", "body", "kind", "text"), REFUSALS)
def test_refusals_keep_the_servers_text(status: int, body: bytes, kind: ErrorKind, text: str) -> None:
    """JSON in any shape, HTML and plain text give one short line (C39, C43)."""
    for streaming in (True, False):
        answer = read(body, status=status, streaming=streaming)
        assert answer.error_kind is kind
        assert answer.error_text is not None
        assert answer.error_text.startswith(text)
        assert len(answer.error_text) <= MAX_ERROR_TEXT
        answer.error_text.encode("utf-8")


def test_redirect_names_its_goal_without_secrets() -> None:
    """A redirect is a failure that shows where to, without credentials or query."""
    answer = read(b"", status=301, location="https://u:pw@h/v1?key=k")
    assert answer.error_kind is ErrorKind.HTTP_4XX
    assert (
        answer.error_text
        == "HTTP 301: redirected to https://h/v1; redirects are not followed, give the final URL"
    )


OVERFLOWS = [
    OVERFLOW,
    "max_tokens=100000 cannot be greater than max_model_len=4096. Please request fewer output tokens.",
    "The decoder prompt (length 5000) is longer than the maximum model length of 4096.",
    "the request exceeds the available context size. try increasing the context size or enable context shift",
    "request (5000 tokens) exceeds the available context size (4096 tokens), try increasing it",
    "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 `inputs` tokens",
    "Input validation error: `inputs` must have less than 1024 tokens. Given: 2000",
    "The input (5000 tokens) is longer than the model's context length (4096 tokens).",
    "Requested token count exceeds the model's maximum context length of 4096 tokens.",
    "code context_length_exceeded: too long",
    "prompt is too long: 5000 tokens > 4096 maximum",
]
NO_OVERFLOWS = [
    "The model `no-such-model` does not exist.",
    "unknown field stream_options",
    "The engine is currently busy and cannot accept new requests.",
    "temperature must be at most 2",
    "max_tokens must be at least 1, got 0.",
    "rate limit exceeded for tokens per minute",
]


@pytest.mark.parametrize(
    ("text", "is_overflow"),
    [*((text, True) for text in OVERFLOWS), *((text, False) for text in NO_OVERFLOWS)],
)
def test_context_overflow_is_told_from_other_refusals(text: str, is_overflow: bool) -> None:
    """The texts of vLLM, OpenAI, llama.cpp, TGI and SGLang are the plan's fault, not the server's (C90)."""
    expected = ErrorKind.CONTEXT_OVERFLOW if is_overflow else ErrorKind.HTTP_4XX
    assert read(json.dumps({"error": {"message": text}}).encode(), status=400).error_kind is expected
