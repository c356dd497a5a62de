"""What answers mean: every case of tokens, counts, ends and failures, as data."""

from __future__ import annotations

import gzip
import itertools
import json
import zlib
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from distbench.core.openai_api import Answer, AnswerReader, read_answer, token_seen
from distbench.core.records import MAX_ERROR_TEXT, ErrorKind, TokenSource
from tests.wire.support import DATA

MS = 1_000_000
DONE = b"data: [DONE]\n\n"
STOP = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


def event(value: Any) -> bytes:
    """Return a value as one event of a stream."""
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def delta(**fields: Any) -> dict[str, Any]:
    """Return a chat chunk with one choice and these fields of its delta."""
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": None}]}


def read(
    *timed: tuple[float, Any] | Any,
    complete: bool = True,
    streaming: bool = True,
    status: int = 200,
    **headers: str,
) -> Answer:
    """Read an answer whose pieces are values, raw bytes, or (ms, either)."""
    pieces, stamps = [], []
    for item in timed:
        at_ms, value = item if isinstance(item, tuple) else (0.0, item)
        pieces.append(value if isinstance(value, bytes) else event(value))
        stamps.append(round(at_ms * MS))
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return read_answer(
        status=status,
        headers=names,
        body=pieces,
        stamps_ns=stamps,
        complete=complete,
        streaming=streaming,
        keep_text=True,
    )


def test_first_token_is_the_first_with_content() -> None:
    """Role and empty chunks start no clock (C17), nor does a filter-only event without choices (C14)."""
    answer = read(
        (1, {"choices": [], "prompt_filter_results": []}),
        (5, delta(role="assistant", content="")),
        (6, delta(role="assistant", content=None)),
        (214, delta(content="A")),
        (234, delta(content="B")),
        (240, STOP),
        (241, {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 2}}),
        (242, DONE),
    )
    assert (answer.error_kind, answer.first_token_ns, answer.first_answer_ns) == (None, 214 * MS, 214 * MS)
    assert (answer.last_token_ns, answer.chunk_ns) == (234 * MS, [214 * MS, 234 * MS])
    assert (answer.prompt_tokens, answer.completion_tokens, answer.token_source) == (9, 2, TokenSource.USAGE)
    assert (answer.finish_reason, answer.text, answer.chunk_tokens) == ("stop", "AB", None)


def test_empty_text_of_completions_is_no_token() -> None:
    """A completions chunk with an empty text is like a role chunk (C17)."""
    answer = read(
        (5, {"choices": [{"text": ""}]}), (9, {"choices": [{"text": "x", "finish_reason": "length"}]}), DONE
    )
    assert (answer.first_token_ns, answer.finish_reason, answer.completion_tokens) == (9 * MS, "length", 1)


def test_reasoning_starts_ttft_and_answer_starts_ttfo() -> None:
    """Reasoning under either name is the first token; the first answer token is told apart (C18)."""
    answer = read(
        (80, delta(reasoning="Ok")),
        (100, delta(reasoning_content="so")),
        (900, delta(content="4")),
        (901, STOP),
        (902, {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 3}}),
    )
    assert (answer.first_token_ns, answer.first_answer_ns) == (80 * MS, 900 * MS)
    assert (answer.completion_tokens, len(answer.chunk_ns), answer.error_kind) == (3, 3, None)


def test_answer_of_reasoning_only_is_a_success() -> None:
    """All budget spent on reasoning: ok, and no first answer token (C18)."""
    answer = read((80, delta(reasoning="Ok")), (90, STOP), DONE)
    assert (answer.error_kind, answer.first_token_ns, answer.first_answer_ns) == (None, 80 * MS, None)


def test_content_in_parts_is_read() -> None:
    """Content given as a list of parts counts, thinking parts as reasoning."""
    answer = read(
        (10, delta(content=[{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}])),
        (20, delta(content=[{"type": "text", "text": "4"}])),
        STOP,
    )
    assert (answer.first_token_ns, answer.first_answer_ns, answer.text) == (10 * MS, 20 * MS, "hm4")


def test_reasoning_tokens_are_a_part_of_the_completion() -> None:
    """completion_tokens holds the reasoning tokens already (C19)."""
    usage = {
        "completion_tokens": 120,
        "prompt_tokens": 5,
        "completion_tokens_details": {"reasoning_tokens": 90},
    }
    answer = read(delta(content="x"), STOP, {"choices": [], "usage": usage})
    assert (answer.completion_tokens, answer.reasoning_tokens) == (120, 90)


def test_tool_calls_are_tokens() -> None:
    """Fragments of one index are one call; they bear the times (C20)."""
    answer = read(
        (300, delta(tool_calls=[{"index": 0, "id": "c1", "function": {"name": "f", "arguments": ""}}])),
        (320, delta(tool_calls=[{"index": 0, "function": {"arguments": "{}"}}])),
        (330, {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}),
        (331, {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 12}}),
    )
    assert (answer.error_kind, answer.tool_calls, answer.completion_tokens) == (None, 1, 12)
    assert (answer.first_token_ns, answer.first_answer_ns, answer.last_token_ns) == (
        300 * MS,
        300 * MS,
        320 * MS,
    )
    assert (
        read(
            delta(tool_calls=[{"index": 0}, {"index": 1}]), delta(tool_calls=[{"index": 1}]), STOP
        ).tool_calls
        == 2
    )
    assert read(delta(tool_calls=[], content=""), STOP).error_kind is ErrorKind.EMPTY


def test_legacy_function_call_and_refusal_are_tokens() -> None:
    """The older form of a call, and a refusal, are output like any other."""
    answer = read((7, delta(function_call={"name": "f", "arguments": ""})), STOP)
    assert (answer.first_token_ns, answer.tool_calls) == (7 * MS, 1)
    assert read((8, delta(refusal="no")), STOP).first_answer_ns == 8 * MS


def test_usage_after_the_finish_reason_and_after_done_is_read() -> None:
    """Reading goes on to the end of the body (C12)."""
    usage = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 1}}
    for tail in ([usage, DONE], [DONE, usage]):
        answer = read((1, delta(content="a")), (2, STOP), *tail)
        assert (answer.prompt_tokens, answer.completion_tokens, answer.last_token_ns) == (3, 1, 1 * MS)


def test_cumulative_usage_is_not_added_up() -> None:
    """The last non-null usage counts; its steps are the tokens of the chunks (C15)."""
    chunks = [
        {**delta(content="abc"[i]), "usage": {"prompt_tokens": 7, "completion_tokens": i + 1}}
        for i in range(3)
    ]
    first = {**delta(role="assistant"), "usage": None}
    last = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}
    answer = read(first, *chunks, last, DONE)
    assert (answer.prompt_tokens, answer.completion_tokens, answer.chunk_tokens) == (7, 3, [1, 1, 1])


def test_steps_of_usage_are_tokens_of_chunks() -> None:
    """Bundled tokens are counted by the steps (C26); the step of an empty chunk belongs to the next."""
    totals = [(100, "a", 1), (140, "bcde", 5), (150, "", 6), (180, "fgh", 9), (200, "ij", 11)]
    chunks = [
        (t, {**delta(content=c), "usage": {"prompt_tokens": 1, "completion_tokens": n}}) for t, c, n in totals
    ]
    answer = read(*chunks, STOP, DONE)
    assert (answer.chunk_tokens, answer.completion_tokens) == ([1, 4, 4, 2], 11)
    assert answer.chunk_ns == [100 * MS, 140 * MS, 180 * MS, 200 * MS]


def test_one_chunk_without_its_count_makes_all_unknown() -> None:
    """Counts of chunks are told for all of them or for none."""
    counted = {**delta(content="a"), "usage": {"prompt_tokens": 1, "completion_tokens": 1}}
    assert read(counted, delta(content="b"), STOP).chunk_tokens is None


def test_token_ids_count_tokens() -> None:
    """Ids in the chunks count where there is no usage, a held-back character included."""

    def chunk(text: str, ids: list[int]) -> dict[str, Any]:
        return {"choices": [{"index": 0, "delta": {"content": text}, "token_ids": ids}]}

    answer = read((1, chunk("a", [5])), (2, chunk("", [6])), (3, chunk("bc", [7, 8])), STOP)
    assert (answer.completion_tokens, answer.token_source) == (4, TokenSource.TOKEN_IDS)
    assert (answer.chunk_tokens, answer.chunk_ns) == ([1, 1, 2], [1 * MS, 2 * MS, 3 * MS])


def test_without_usage_the_chunks_are_counted() -> None:
    """An early stop is never credited with what was asked for (C23)."""
    answer = read(delta(content="Yes"), delta(content="."), STOP)
    assert (answer.completion_tokens, answer.token_source, answer.prompt_tokens) == (
        2,
        TokenSource.CHUNKS,
        None,
    )


@pytest.mark.parametrize(
    ("usage", "prompt", "completion", "source"),
    [
        ({"prompt_tokens": 4}, 4, 1, TokenSource.CHUNKS),
        ({"prompt_tokens": 4, "completion_tokens": None}, 4, 1, TokenSource.CHUNKS),
        ({"prompt_tokens": 4, "completion_tokens": 0}, 4, 1, TokenSource.CHUNKS),
        ({"prompt_tokens": 4.0, "completion_tokens": 2.0}, 4, 2, TokenSource.USAGE),
        ({"prompt_tokens": "4", "completion_tokens": True}, None, 1, TokenSource.CHUNKS),
        ({"prompt_tokens": -1, "completion_tokens": 10**30}, None, 1, TokenSource.CHUNKS),
        ([], None, 1, TokenSource.CHUNKS),
    ],
)
def test_odd_usage_is_taken_as_far_as_it_goes(
    usage: Any, prompt: int | None, completion: int, source: TokenSource
) -> None:
    """Missing, null, absurd and mistyped counts are not counts."""
    answer = read(delta(content="a"), STOP, {"choices": [], "usage": usage})
    assert (answer.prompt_tokens, answer.completion_tokens, answer.token_source) == (
        prompt,
        completion,
        source,
    )
    assert answer.error_kind is None


def test_cached_tokens_and_server_metrics_are_kept() -> None:
    """The server's own truth about the request comes along."""
    usage = {"prompt_tokens": 281, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 256}}
    metrics = {"time_to_first_token_ms": 8.5, "queue_time_ms": 0, "mean_itl_ms": None}
    answer = read(delta(content="a"), STOP, {"choices": [], "usage": usage, "metrics": metrics})
    assert answer.cached_tokens == 256
    assert answer.server_metrics == {"time_to_first_token_ms": 8.5, "queue_time_ms": 0.0}


A = delta(content="a")
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
    assert (answer.chunk_ns, answer.chunk_tokens, answer.text) == ([], None, "hi")


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


LENIENT = [
    b'data: {"choices":[{"index":0,"delta":{"content":"\\ud83d"}}]}\n\n',
    b'data: {"choices":[{"index":0,"delta":{"content":"\xff\xfe"}}]}\n\n',
    b'data: {"choices":[{"index":0,"delta":{"content":"a\tb"}}]}\n\n',
    b'data: {"x":NaN,"choices":[{"index":0,"delta":{"content":"a"},"logprobs":[-Infinity]}]}\n\n',
    b'data: {"created":123456789012345678901234567890,"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n',
    b'data: {"choices":[{"index":"0","delta":{"content":"a"}}]}\n\n',
    b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":{"type":"x"}}],"usage":[]}\n\n',
    '{"choices":[{"index":0,"delta":{"content":"日本🙂"}}]}'.encode().join([b"data: ", b"\n\n"]),
]


@pytest.mark.parametrize("piece", LENIENT)
def test_sloppy_json_is_still_a_token(piece: bytes) -> None:
    """Lone surrogates, broken UTF-8, NaN, huge numbers and wrong types do not fail a request (C07)."""
    for pieces in ([piece], [bytes([b]) for b in piece]):
        answer = read(*pieces, STOP, DONE)
        assert (answer.error_kind, answer.completion_tokens) == (None, 1)


def test_choices_of_one_chunk_are_one_arrival() -> None:
    """With n > 1 each event counts once; calls of different choices are different calls."""
    both = {"choices": [{"index": i, "delta": {"tool_calls": [{"index": 0}]}} for i in (0, 1)]}
    answer = read((5, both), STOP, {"choices": [], "usage": {"completion_tokens": 10}})
    assert (answer.chunk_ns, answer.tool_calls, answer.completion_tokens) == ([5 * MS], 2, 10)


STREAM = b"".join([event(A), event(delta(content="b")), event(STOP), DONE])


@pytest.mark.parametrize(
    ("coding", "body"),
    [
        ("gzip", gzip.compress(STREAM)),
        ("gzip", gzip.compress(STREAM[:60]) + gzip.compress(STREAM[60:])),
        ("deflate", zlib.compress(STREAM)),
        ("deflate", zlib.compress(STREAM)[2:-4]),
    ],
)
def test_compressed_streams_are_decoded_and_named(coding: str, body: bytes) -> None:
    """A stream that comes compressed all the same is read right and said to be so (C35)."""
    for pieces in ([body], [bytes([b]) for b in body]):
        answer = read(*((i, piece) for i, piece in enumerate(pieces)), content_encoding=coding)
        assert (answer.error_kind, answer.completion_tokens, answer.content_encoding) == (None, 2, coding)
    assert read(b"\xff\xffHTTP", content_encoding=coding).error_kind is ErrorKind.PROTOCOL
    assert token_seen([body]) or coding == "deflate"


def test_unknown_compression_says_so() -> None:
    """A coding that cannot be decoded is a protocol failure that names it; identity is none."""
    answer = read(b"\x1b\x00", content_encoding="br")
    assert (answer.error_kind, answer.content_encoding) == (ErrorKind.PROTOCOL, "br")
    assert "'br'" in (answer.error_text or "")
    assert read(A, STOP, content_encoding="identity").content_encoding is None


def test_refusal_may_be_compressed() -> None:
    """The text of a compressed refusal is shown."""
    answer = read(gzip.compress(b'{"detail":"no"}'), status=400, content_encoding="gzip")
    assert answer.error_text == "HTTP 400: no"


def test_event_beyond_the_cap_is_the_clients_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cap on an event is the tool's own and says so (C09)."""
    monkeypatch.setattr("distbench.core.sse.SseParser.__init__.__defaults__", (1000,))
    answer = read(delta(content="a" * 2000), STOP)
    assert answer.error_kind is ErrorKind.CLIENT_LIMIT
    assert "1000" in (answer.error_text or "")


def test_token_seen_is_about_tokens() -> None:
    """Pings and role chunks are no token; a token is, also when split."""
    role = event(delta(role="assistant", content=""))
    assert not token_seen([])
    assert not token_seen([b": ping\n\n", role])
    assert not token_seen([role, event(A)[:-1]])
    assert token_seen([role, event(A)[:9], event(A)[9:]])


def plain_stream(texts: Sequence[str], **extra: Any) -> list[bytes]:
    """Return a vLLM-like stream of these texts, one event a piece."""
    base = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    chunks = [
        {
            **base,
            "choices": [{"index": 0, "delta": {"content": t}, "logprobs": None, "finish_reason": None}],
            **extra,
        }
        for t in texts
    ]
    return [
        *[
            b"data: " + json.dumps(c, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"
            for c in chunks
        ],
        event(STOP),
        DONE,
    ]


_TEXTS = st.lists(
    st.text(max_size=6)
    | st.sampled_from(["", '"', "\\", '","x":"', "\n", "content", '"content":"', " a", "日"]),
    max_size=12,
)


@given(texts=_TEXTS, glue=st.lists(st.booleans(), max_size=16), end=st.sampled_from([b"\n\n", b"\r\n\r\n"]))
@settings(max_examples=80, deadline=None)
@example(texts=["a", "b", '"c', "d\\", "e"], glue=[], end=b"\n\n")
def test_recognised_chunks_are_read_as_decoded_ones(texts: list[str], glue: list[bool], end: bytes) -> None:
    """Chunks known by their frame give text and times as decoding would, whatever the text and however bundled."""
    pieces = [piece.replace(b"\n\n", end) for piece in plain_stream(texts)]
    expected = [i for i, text in enumerate(texts) if text]
    answer = read(*((i / MS, piece) for i, piece in enumerate(pieces)))
    assert answer.chunk_ns == expected
    assert answer.text == "".join(texts).encode("utf-8", "replace").decode("utf-8", "replace")
    bundled: list[bytes] = []
    for piece, is_glued in itertools.zip_longest(pieces, glue[: len(pieces)], fillvalue=False):
        if is_glued and bundled:
            bundled[-1] += piece  # type: ignore[operator]
        else:
            bundled.append(piece)  # type: ignore[arg-type]
    assert read(*bundled).text == answer.text
    assert read(*bundled).completion_tokens == answer.completion_tokens


CAPTURES = sorted(path.name for path in DATA.glob("*.response"))


def body_of(name: str) -> bytes:
    """Return the body of a recorded response, its chunk framing undone by hand."""
    head, _, rest = (DATA / name).read_bytes().partition(b"\r\n\r\n")
    if b"chunked" not in head:
        return rest
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        body += rest[: int(size, 16)]
        rest = rest[int(size, 16) + 2 :]
    return body


@given(name=st.sampled_from(CAPTURES), data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_split_of_a_recorded_answer_is_the_same(name: str, data: st.DataObject) -> None:
    """However a recorded body is split and in whatever slices it is fed, the answer is the same but for the times."""
    body = body_of(name)[:6000]
    cuts = data.draw(st.lists(st.integers(1, max(1, len(body) - 1)), max_size=30, unique=True).map(sorted))
    pieces = [body[a:b] for a, b in itertools.pairwise([0, *cuts, len(body)])]
    whole = read(body)
    reader = AnswerReader(status=200, headers={}, streaming=True, keep_text=True)
    for piece in pieces:
        reader.feed([piece], [7])
    split = reader.finish(complete=True)
    for field in (
        "error_kind",
        "error_text",
        "text",
        "completion_tokens",
        "prompt_tokens",
        "finish_reason",
        "chunk_tokens",
        "server_metrics",
    ):
        assert getattr(split, field) == getattr(whole, field), field
    assert len(split.chunk_ns) == len(whole.chunk_ns)


@given(
    body=st.binary(max_size=80),
    name=st.sampled_from(CAPTURES),
    at=st.integers(0, 4000),
    status=st.sampled_from([None, 200, 204, 302, 400, 429, 500]),
    streaming=st.booleans(),
    coding=st.sampled_from(["", "gzip", "deflate", "br"]),
)
@settings(max_examples=100, deadline=None)
def test_no_bytes_raise(
    body: bytes, name: str, at: int, status: int | None, streaming: bool, coding: str
) -> None:
    """Random bytes and mutated recordings have a verdict, never an exception, and a text that any file can hold."""
    recorded = body_of(name)
    for text in (body, recorded[: at % (len(recorded) + 1)] + body + recorded[at:]):
        for complete in (True, False):
            answer = read_answer(
                status=status,
                headers={"content-encoding": coding},
                body=[text],
                stamps_ns=[1],
                complete=complete,
                streaming=streaming,
            )
            assert (answer.error_kind is None) == (answer.error_text is None)
            if answer.error_text is not None:
                assert len(answer.error_text) <= MAX_ERROR_TEXT
                answer.error_text.encode("utf-8")


def test_deeply_nested_json_does_not_raise() -> None:
    """Nesting beyond any stack is a verdict too."""
    assert read(b"data: " + b"[" * 200_000 + b"\n\n").error_kind is ErrorKind.PROTOCOL
    assert read(b'{"a":' * 200_000, status=500).error_kind is ErrorKind.HTTP_5XX
    assert read(b"data: " + b"9" * 10_000 + b"\n\n").error_kind is ErrorKind.PROTOCOL
