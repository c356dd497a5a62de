"""Server-sent events: the standard's rules, and that no split of the bytes changes anything."""

import itertools
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distbench.core.sse import EventTooLong, SseParser


def events_of(*pieces: bytes, lines_only: bool = False) -> list[tuple[bytes, bytes, int]]:
    """Return (data, name, index of the completing piece) of all events."""
    parser = SseParser()
    feed = parser.feed_lines if lines_only else parser.feed
    return [
        (event.data, event.name, event.stamp_ns)
        for index, piece in enumerate(pieces)
        for event in feed(piece, index)
    ]


RULES = [
    ("LF", b"data: a\n\ndata: b\n\n", [b"a", b"b"]),
    ("CRLF (C01)", b"data: a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"]),
    ("CR", b"data: a\r\rdata: b\r\r", [b"a", b"b"]),
    ("mixed ends", b"data: a\r\n\ndata: b\n\r\n", [b"a", b"b"]),
    (
        "spaces (C03)",
        b'data:{"a":1}\n\ndata: {"a":2}\n\ndata:   {"a":3}\n\n',
        [b'{"a":1}', b'{"a":2}', b'  {"a":3}'],
    ),
    (
        "comments and pings (C04)",
        b":\n\n: ping\n\nid: 7\ndata: E1\n\n: keep-alive\n\ndata: [DONE]\n\n",
        [b"E1", b"[DONE]"],
    ),
    ("BOM", b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
    ("BOM within is a field name", b"data: a\n\n\xef\xbb\xbfdata: b\n\n", [b"a"]),
    ("several data lines", b"data: a\ndata: b\ndata\ndata:\n\n", [b"a\nb\n\n"]),
    ("no data, no event", b"event: x\nid: 1\n\nretry: 5\n\n", []),
    ("empty data is an event", b"data:\n\n", [b""]),
    ("unknown field", b"foo: bar\ndata: a\nDATA: b\n\n", [b"a"]),
    ("no blank line, no event", b"data: a\n\ndata: b\n", [b"a"]),
    ("colon in the value", b"data: a: b\n\n", [b"a: b"]),
]


@pytest.mark.parametrize(("text", "expected"), [row[1:] for row in RULES], ids=[row[0] for row in RULES])
def test_rules_of_the_standard(text: bytes, expected: list[bytes]) -> None:
    """Whole, byte by byte and line by line, the same events come out."""
    assert [data for data, _, _ in events_of(text)] == expected
    assert [data for data, _, _ in events_of(*(bytes([b]) for b in text))] == expected
    assert [data for data, _, _ in events_of(text, lines_only=True)] == expected


def test_event_names_last_for_one_event() -> None:
    """The event field names the event it stands in, and no other."""
    assert events_of(b"event: error\ndata: x\n\ndata: y\n\n") == [(b"x", b"error", 0), (b"y", b"", 0)]


def test_segments_stamp_the_event_they_complete() -> None:
    """An event bears the stamp of the segment that brought its end (C05)."""
    pieces = [b'data: E1\n\ndata: {"cho', b'ices":[{"index":0,', b'"delta":{}}]}\n\nda', b"ta: [DONE]\n\n"]
    assert [(data, index) for data, _, index in events_of(*pieces)] == [
        (b"E1", 0),
        (b'{"choices":[{"index":0,"delta":{}}]}', 2),
        (b"[DONE]", 3),
    ]


def test_cr_of_a_blank_line_ends_the_event_at_once() -> None:
    """An LF that follows its CR in the next read delays no stamp and begins no line (C01)."""
    assert events_of(b"data: a\r\n\r", b"\ndata: b\r", b"\n\r\n") == [(b"a", b"", 0), (b"b", b"", 2)]
    assert events_of(b"data: a\n\r", b"\n\r\n", b"data: b\n\n") == [(b"a", b"", 0), (b"b", b"", 2)]


def test_long_event_passes_and_the_cap_is_the_clients() -> None:
    """A million characters are one event (C09); beyond the cap the error names it, in any split."""
    assert len(events_of(b"data: " + b"a" * 1_000_000 + b"\n\n")[0][0]) == 1_000_000
    for pieces in (
        [b"data: " + b"a" * 200 + b"\n\n"],
        [b"data: ", *[b"a" * 10] * 20],
        [b"data: aaaaaaaaa\n"] * 20,
    ):
        parser = SseParser(max_event_bytes=100)
        with pytest.raises(EventTooLong, match="100"):
            deque((parser.feed(piece, 0) for piece in pieces), maxlen=0)


def test_pending_event_is_the_one_without_its_blank_line() -> None:
    """The event that the end cut off can be looked at, and only it."""
    parser = SseParser()
    assert len(parser.feed(b"data: a\n\ndata: [DONE]", 1)) == 1
    pending = parser.pending(2)
    assert pending is not None
    assert (pending.data, pending.stamp_ns) == (b"[DONE]", 2)
    assert SseParser().pending(1) is None


def test_comments_are_counted() -> None:
    """Pings are counted apart from events."""
    parser = SseParser()
    parser.feed(b": ping\n\n:\n\ndata: a\n\n", 0)
    assert parser.num_comments == 2


_LINES = st.sampled_from(
    [b"data: {}", b'data: {"a":1}', b"data:x", b"data", b"", b": ping", b"event: error", b"id: 7", b"retry: 1", b"foo", b"\xef\xbb\xbf", b"data: {\xf0\x9f}"]
)  # fmt: skip
_STREAMS = st.lists(st.tuples(_LINES, st.sampled_from([b"\n", b"\r\n", b"\r", b"\n\n"])), max_size=14).map(
    lambda parts: b"".join(line + end for line, end in parts)
)


@given(text=_STREAMS | st.binary(max_size=60), cuts=st.lists(st.integers(0, 200), max_size=12))
@settings(max_examples=120, deadline=None)
def test_any_split_gives_the_same_events(text: bytes, cuts: list[int]) -> None:
    """The events do not depend on how the bytes came, nor on the shorter way of feed()."""
    bounds = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[a:b] for a, b in itertools.pairwise(bounds)]
    expected = [event[:2] for event in events_of(*(bytes([b]) for b in text), lines_only=True)]
    assert [event[:2] for event in events_of(*pieces)] == expected
    assert [event[:2] for event in events_of(text)] == expected


@given(
    st.lists(
        st.sampled_from(
            [b'data: {"a":1}\n\n', b"data: {}\n\n", b"data: {\n}\n\n", b"data: {}\r\n\n", b"data: {"]
        ),
        max_size=6,
    )
)
def test_shorter_way_is_the_same_as_line_by_line(pieces: list[bytes]) -> None:
    """On whole events, several to a piece, and pieces that only look so, both ways agree on data and stamps."""
    joined = [b"".join(pieces[:3]), b"".join(pieces[3:])]
    for each in (pieces, joined):
        assert events_of(*each) == events_of(*each, lines_only=True)
