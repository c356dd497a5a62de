"""Chunks that differ in their text alone are counted without being kept; what an answer means does not change by that."""

from __future__ import annotations

import itertools
import json
from array import array

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from distbench.core.openai_api import TemplateFinder
from distbench.core.records import ErrorKind
from distbench.wire import hot_path
from distbench.wire.base import Exchange, TemplateOf
from distbench.wire.response import ResponseReader
from tests.support.scripted import Step, chunk, chunked, head, scripted_server
from tests.wire.support import BODY, answer_of, connection, run, split_at

pytestmark = pytest.mark.usefixtures("each_hot_path")
NO_CAP = 2**40
HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b'data: {"id":"x","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
DONE = b"data: [DONE]\n\n"


def event(text: str, answer: str = "x") -> bytes:
    """Return a token's event as servers write it."""
    value = {"id": answer, "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]}
    return b"data: " + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def read(
    reads: list[bytes], template_of: TemplateOf | None, cap: int = NO_CAP
) -> tuple[Exchange, ResponseReader]:
    """Read a response, the time of the n-th read being n."""
    exchange = Exchange()
    reader = ResponseReader(exchange, cap, template_of)
    for number, data in enumerate(reads, 1):
        if not reader.repeats.take(data, number, 10 * number) and reader.feed(data, number):
            break
    reader.tell_repeats()
    return exchange, reader


def test_all_but_the_first_and_the_last_are_not_kept() -> None:
    """Four tokens, of which one is kept; the fifth has a quote, which could end the text."""
    tokens = [event(text) for text in ("a", " bc", "日本", "d", 'e"', "f")]
    exchange, reader = read([HEAD, *map(chunk, [*tokens, END + DONE]), b"0\r\n\r\n"], TemplateFinder())
    assert exchange.body == [tokens[0], tokens[4], END + DONE]
    assert exchange.repeats == [(1, 3), (2, 1)]
    assert list(exchange.stamps_ns) == [2, 3, 4, 5, 6, 7, 8]
    assert exchange.complete
    assert (reader.num_reads, reader.repeats.worst_lag_ns) == (9, 70)
    assert reader.num_bytes == len(HEAD) + sum(len(chunk(t)) for t in [*tokens, END + DONE]) + 5
    answer = answer_of(exchange)
    assert list(answer.chunk_ns) == [2, 3, 4, 5, 6, 7]
    assert (answer.completion_tokens, answer.finish_reason, answer.error_kind) == (6, "stop", None)


def test_only_whole_chunks_at_an_events_border_are_repeats() -> None:
    """What lies within an event, or in a chunk cut by a read, is kept, though it looks the same."""
    a, b = event("a"), event("b")
    within = [b"data: so", a, b]  # the event is one broken line, then a token
    exchange, _ = read([HEAD, chunk(a), *map(chunk, within)], TemplateFinder())
    assert (exchange.body, exchange.repeats) == ([a, b"data: so", a], [(3, 1)])
    cut = chunk(b)
    exchange, _ = read([HEAD, chunk(a), cut[:9], cut[9:], chunk(b)], TemplateFinder())
    assert (b"".join(exchange.body), exchange.repeats) == (a + b, [(3, 1)])
    broken = chunk(b)[:-2] + b"xx"
    exchange, reader = read([HEAD, chunk(a), broken], TemplateFinder())
    assert reader.fault is not None
    assert (reader.fault.kind, exchange.repeats) == (ErrorKind.PROTOCOL, [])


def test_a_repeat_has_both_what_is_ahead_of_its_text_and_what_is_behind_it() -> None:
    """Of three reads of one length, the text as plain in each, only the one with both counts."""
    stamps = array("q")
    repeats = hot_path.in_use.repeats(stamps, NO_CAP)
    repeats.expect((b'{"text":"', b'"}\n\n\r\n'))
    assert not repeats.take(b"0123456789abcdefg" + b'"}\n\n\r\n', 1, 0)
    assert not repeats.take(b'11\r\n{"text":"' + b"0123456789", 2, 0)
    assert repeats.take(b'11\r\n{"text":"' + b"0123" + b'"}\n\n\r\n', 3, 0)
    assert list(stamps) == [3]


def test_the_same_beginning_with_another_end_is_another_template() -> None:
    """Of two reads of one length the second has a longer end, and so a shorter text."""
    stamps = array("q")
    repeats = hot_path.in_use.repeats(stamps, NO_CAP)
    repeats.expect((b'{"text":"', b'"}\n\n\r\n'))
    assert repeats.take(b'f\r\n{"text":"ab"}\n\n\r\n', 1, 0)
    repeats.expect((b'{"text":"', b'"}}\n\n\r\n'))
    assert repeats.take(b'f\r\n{"text":"a"}}\n\n\r\n', 2, 0)
    assert list(stamps) == [1, 2]


def test_an_empty_text_is_no_repeat() -> None:
    """It is no token."""
    exchange, _ = read([HEAD, chunk(event("a")), chunk(event("")), chunk(event("b"))], TemplateFinder())
    assert exchange.repeats == [(2, 1)]
    assert list(answer_of(exchange).chunk_ns) == [2, 4]


def test_repeats_do_not_pass_the_cap() -> None:
    """An endless answer ends at the client's own limit, kept or not."""
    size = len(chunk(event("a")))
    reads = [HEAD] + [chunk(event("a"))] * 9
    exchange, reader = read(reads, TemplateFinder(), cap=len(HEAD) + 5 * size + 1)
    assert reader.fault is not None
    assert (reader.fault.kind, exchange.repeats) == (ErrorKind.CLIENT_LIMIT, [(1, 4)])


def test_an_answer_of_repeats_is_small() -> None:
    """Of 1,000 tokens one is kept, and 8 bytes for the time of each: not the quarter of a megabyte that came."""
    reads = [HEAD] + [chunk(event("a"))] * 1_000
    small, reader = read(reads, TemplateFinder())
    small.bytes_received = reader.num_bytes
    whole, reader = read(reads, None)
    whole.bytes_received = reader.num_bytes
    size = len(chunk(event("a")))
    assert 8_000 + size <= small.held_bytes < 8_000 + 2 * size
    assert whole.held_bytes == 8_000 + len(HEAD) + 1_000 * size


_TEXTS = st.lists(
    st.text(max_size=6)
    | st.sampled_from(["", '"', "\\", '","x":"', "\n", "content", '"content":"', " a", "日", "b", "c"]),
    max_size=14,
)


@given(
    texts=_TEXTS,
    glue=st.lists(st.booleans(), max_size=16),
    end=st.sampled_from([b"\n\n", b"\r\n\r\n"]),
    cuts=st.lists(st.integers(1, 4_000), max_size=6),
    answers=st.sampled_from(["x", "chatcmpl-7", "a\\b"]),
)
@settings(max_examples=150, deadline=None)
@example(texts=["a", "b", '"c', "d\\", "e"], glue=[], end=b"\n\n", cuts=[], answers="x")
def test_an_answer_means_the_same_with_and_without_templates(
    texts: list[str], glue: list[bool], end: bytes, cuts: list[int], answers: str
) -> None:
    """Whatever the texts, however chunks are bundled and cut by reads, on the second answer of a server as on the first."""
    pieces = [piece.replace(b"\n\n", end) for piece in [*(event(t, answers) for t in texts), END, DONE]]
    reads: list[bytes] = [HEAD]
    for piece, is_glued in itertools.zip_longest(pieces, glue[: len(pieces)], fillvalue=False):
        if is_glued:
            reads[-1] += chunk(piece)  # type: ignore[arg-type]
        else:
            reads.append(chunk(piece))  # type: ignore[arg-type]
    reads[-1] += b"0\r\n\r\n"
    if cuts:
        stream = b"".join(reads)
        borders = list(itertools.accumulate(map(len, reads)))[:-1]
        reads = split_at(stream, sorted({*borders, *(cut for cut in cuts if cut < len(stream))}))
    finder = TemplateFinder()
    plain, plain_reader = read(reads, None)
    for _ in range(2):
        known, reader = read(reads, finder)
        assert known.complete
        assert (reader.num_reads, reader.num_bytes) == (plain_reader.num_reads, plain_reader.num_bytes)
        assert list(known.stamps_ns) == list(plain.stamps_ns)
        assert len(known.body) + sum(count for _, count in known.repeats) == len(plain.body)
        one, other = answer_of(known), answer_of(plain)
        one.text = other.text = None  # that of the repeats is not kept
        assert one == other


def test_a_connection_counts_repeats_as_they_come() -> None:
    """Over a socket: 20 tokens, one piece kept, 20 times as the server sent them, the kernel's stamps throughout."""

    async def go() -> None:
        response: list[Step] = [head("Transfer-Encoding: chunked")]
        for piece in chunked(*(event(f"t{number}") for number in range(20)), END + DONE):
            response += [0.004, piece]
        async with scripted_server([response]) as seen:
            conn = connection("fast", seen.url(), template_of=TemplateFinder())
            exchange = await conn.exchange(1, BODY)
            await conn.close()
        assert (len(exchange.body), exchange.repeats) == (2, [(1, 19)])
        answer = answer_of(exchange)
        assert len(answer.chunk_ns) == 20
        sent = [at for at, piece in seen.sent_ns if b"content" in piece]
        assert all(abs(a - b) < 50_000_000 for a, b in zip(sent, answer.chunk_ns, strict=True))
        assert exchange.stamp == "kernel"
        assert exchange.client_lag_ns is not None
        assert exchange.bytes_received == sum(len(piece) for piece in response if isinstance(piece, bytes))

    run(go())
