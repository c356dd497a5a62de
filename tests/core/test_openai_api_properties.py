"""What holds for all answers: any split, recognised chunks, bytes that mean nothing."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from distbench.core.openai_api import AnswerReader, read_answer
from distbench.core.records import MAX_ERROR_TEXT, ErrorKind
from tests.core.answers import DONE, MS, STOP, event, read
from tests.wire.support import DATA


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
