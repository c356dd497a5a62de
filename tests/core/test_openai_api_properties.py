"""What holds for all answers: any split, recognised chunks, bytes that mean nothing."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from distbench.core.openai_api import AnswerReader, read_answer
from distbench.core.records import MAX_ERROR_TEXT, ErrorKind
from tests.core.answers import read
from tests.wire.support import DATA

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
