"""What answers mean: their tokens, times, counts, and the forms they come in, as data."""

from __future__ import annotations

import gzip
import zlib
from typing import Any

import pytest

from distbench.core.openai_api import token_seen
from distbench.core.records import ErrorKind, TokenSource
from tests.core.answers import DONE, MS, STOP, A, delta, event, read


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
    assert (answer.last_token_ns, list(answer.chunk_ns)) == (234 * MS, [214 * MS, 234 * MS])
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
    assert list(list(answer.chunk_ns)) == [100 * MS, 140 * MS, 180 * MS, 200 * MS]


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
    assert (answer.chunk_tokens, list(answer.chunk_ns)) == ([1, 1, 2], [1 * MS, 2 * MS, 3 * MS])


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
    assert (list(answer.chunk_ns), answer.tool_calls, answer.completion_tokens) == ([5 * MS], 2, 10)


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
