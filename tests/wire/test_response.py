"""The response reader: head, framing and end from any split of the bytes, without a socket."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distbench.core.records import ErrorKind
from distbench.wire.base import Exchange
from distbench.wire.chunked import WHOLE_CHUNK_LINES, ChunkDecoder, ChunkError
from distbench.wire.head import Framing, HeadError, parse_head
from distbench.wire.response import ResponseReader
from tests.wire.support import DATA, answer_of, capture

CAPTURES = sorted(path.name.removesuffix(".response") for path in DATA.glob("*.response"))
NO_CAP = 2**40


def feed_all(pieces: list[bytes]) -> tuple[Exchange, ResponseReader, int]:
    """Feed pieces until the response ends; return what was read and how many pieces that took."""
    exchange = Exchange()
    reader = ResponseReader(exchange, NO_CAP)
    for number, piece in enumerate(pieces, 1):
        if reader.feed(piece, number):
            return exchange, reader, number
    return exchange, reader, 0


@given(name=st.sampled_from(CAPTURES), data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_split_of_a_recording_gives_the_same(name: str, data: st.DataObject) -> None:
    """Body, headers, end and answer do not depend on how the bytes came; every read and byte is counted."""
    recorded = capture(name)[:6000]
    cuts = data.draw(st.lists(st.integers(1, len(recorded) - 1), max_size=40, unique=True).map(sorted))
    pieces = [recorded[a:b] for a, b in itertools.pairwise([0, *cuts, len(recorded)])]
    once, _, _ = feed_all([recorded])
    split, reader, number = feed_all(pieces)
    assert b"".join(split.body) == b"".join(once.body)
    assert (split.status, split.headers, split.complete) == (once.status, once.headers, once.complete)
    assert len(split.body) == len(split.stamps_ns)
    assert (reader.num_reads, reader.num_bytes) == (len(pieces), len(recorded))
    assert number == (len(pieces) if once.complete else 0)
    streaming = "nonstream" not in name
    one, other = answer_of(once, streaming=streaming), answer_of(split, streaming=streaming)
    assert (one.error_kind, one.text, one.completion_tokens) == (
        other.error_kind,
        other.text,
        other.completion_tokens,
    )


@given(st.lists(st.binary(min_size=1, max_size=20), max_size=8), st.lists(st.integers(0, 300), max_size=20))
@settings(max_examples=100, deadline=None)
def test_chunks_of_any_content_come_out_whole(chunks: list[bytes], cuts: list[int]) -> None:
    """Data that looks like framing is data; the end is found exactly, and what follows is surplus."""
    coded = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
    tail = b"0\r\n\r\n"
    bounds = [0, *sorted({cut for cut in cuts if 0 < cut < len(coded)}), len(coded) + len(tail)]
    decoder = ChunkDecoder()
    out = b"".join(decoder.feed((coded + tail)[a:b]) for a, b in itertools.pairwise(bounds))
    assert (out, decoder.done, decoder.surplus) == (b"".join(chunks), True, tail)


@given(st.binary(max_size=60))
@settings(max_examples=100, deadline=None)
def test_no_bytes_raise(data: bytes) -> None:
    """Whatever comes instead of a response is a fault with a text, or waits for more."""
    for start in (b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"):
        exchange, reader, number = feed_all([start + data] if start + data else [])
        assert (number > 0) == (exchange.complete or reader.fault is not None)


def test_shortcut_lines_are_the_size_lines_of_whole_chunks() -> None:
    """For each total length there is at most the one size line of which it is the length."""
    for total, line in WHOLE_CHUNK_LINES.items():
        assert int(line, 16) + len(line) + 2 == total


@pytest.mark.parametrize(
    "coded",
    [
        b"zz\r\n",
        b"0x10\r\n",
        b"+5\r\n",
        b"1_0\r\n",
        b"-1\r\n",
        b"\r\n",
        b"3\r\nabcd\r\n",
        b"3\r\nabc0\r\n",
        b"f" * 9000,
        b"f" * 17 + b"\r\n",
    ],
)
def test_broken_chunk_framing_is_refused(coded: bytes) -> None:
    """Sizes are plain hexadecimal, data is as long as its size says, lines are not endless."""
    with pytest.raises(ChunkError):
        ChunkDecoder().feed(coded)


def test_end_of_the_connection_ends_or_cuts_the_body() -> None:
    """A body that runs to the end is whole at the end; any other is cut there."""
    for head, is_whole in (
        (b"HTTP/1.1 200 OK\r\n\r\nabc", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", False),
    ):
        exchange, reader, _ = feed_all([head])
        reader.end_of_input()
        assert exchange.complete is is_whole
        assert (reader.fault is None) is is_whole
        if reader.fault is not None:
            assert reader.fault.kind is ErrorKind.TRUNCATED


HEADS = [
    (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", Framing.LENGTH, 5, True),
    (b"HTTP/1.1 200\r\ncontent-length:5\r\n\r\n", Framing.LENGTH, 5, True),
    (b"HTTP/1.1 200 OK\nContent-Length: 5\n\n", Framing.LENGTH, 5, True),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n", Framing.LENGTH, 5, True),
    (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n",
        Framing.CHUNKED,
        None,
        True,
    ),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\nContent-Length: 5\r\n\r\n", Framing.LENGTH, 5, True),
    (b"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n", Framing.NONE, None, True),
    (b"HTTP/1.1 200 OK\r\n\r\n", Framing.CLOSE, None, False),
    (b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\n", Framing.LENGTH, 5, False),
    (b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\nConnection: Keep-Alive\r\n\r\n", Framing.LENGTH, 5, True),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: foo, Close\r\n\r\n", Framing.LENGTH, 5, False),
]


@pytest.mark.parametrize(("head", "framing", "length", "keepalive"), HEADS)
def test_framing_and_reuse_follow_from_the_head(
    head: bytes, framing: Framing, length: int | None, keepalive: bool
) -> None:
    """How a body ends and whether the connection goes on are read off the head as RFC 9112 says."""
    parsed = parse_head(head)
    assert (parsed.framing, parsed.length, parsed.keepalive) == (framing, length, keepalive)


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 0x5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nBad Name: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n folded: x\r\n\r\n",
    ],
)
def test_head_in_doubt_is_refused(head: bytes) -> None:
    """A head that leaves the end of the body in doubt is not guessed at."""
    with pytest.raises(HeadError):
        parse_head(head)


def test_headers_are_lower_case_joined_and_unfolded() -> None:
    """Names in lower case, repeated ones joined, folded values in one line."""
    head = b"HTTP/1.1 200 OK\r\nX-A:  1 \r\nx-a: 2\r\nX-B: a\r\n  b\r\nX-C:\r\n\r\n"
    assert parse_head(head).headers == {"x-a": "1, 2", "x-b": "a b", "x-c": ""}


def test_endless_head_is_refused() -> None:
    """A head has a limit, told before memory is spent on it."""
    exchange = Exchange()
    reader = ResponseReader(exchange, NO_CAP)
    has_ended = any(
        reader.feed(b"HTTP/1.1 200 OK\r\n" if i == 0 else b"X-A: " + b"a" * 1000 + b"\r\n", i)
        for i in range(100)
    )
    assert has_ended
    assert reader.fault is not None
    assert reader.fault.kind is ErrorKind.PROTOCOL
