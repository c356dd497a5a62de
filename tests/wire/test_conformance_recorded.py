"""Streams of a real server, replayed in the segments in which they once came, for both implementations of a connection."""

from __future__ import annotations

import json

import pytest

from distbench.core.records import ErrorKind, TokenSource
from tests.support.scripted import Act
from tests.wire.support import DATA, Kind, answer_of, ask_once, capture

RECORDED = sorted(path.name.removesuffix(".recv.jsonl") for path in DATA.glob("*.recv.jsonl"))


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_segments_of_a_real_server(kind: Kind, name: str) -> None:
    """A real server's bytes, in the segments that were recorded, give the same body and answer as in one piece."""
    data = capture(name)
    lines = [json.loads(line) for line in (DATA / f"{name}.recv.jsonl").read_text().splitlines()]
    segments = [data[line["off"] : line["off"] + line["len"]] for line in lines if line.get("len")]
    exchange = ask_once(kind, [*segments, Act.CLOSE])
    at_once = ask_once(kind, [data, Act.CLOSE])
    is_cut = name == "chat_drop_midstream"
    assert exchange.error_kind is (ErrorKind.TRUNCATED if is_cut else None)
    assert b"".join(exchange.body) == b"".join(at_once.body)
    streaming = "nonstream" not in name
    one, other = answer_of(exchange, streaming=streaming), answer_of(at_once, streaming=streaming)
    assert (one.completion_tokens, one.text, one.finish_reason) == (
        other.completion_tokens,
        other.text,
        other.finish_reason,
    )
    assert one.error_kind is None
    if not is_cut:
        assert one.token_source is TokenSource.USAGE
