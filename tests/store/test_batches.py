"""Records become rows of the contract's schema, whatever the server sent."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from distbench.core.records import ErrorKind, Outcome, Phase, RequestRecord, Stamp, TokenSource
from distbench.store.batches import RequestColumns, records_to_table
from distbench.store.schema import REQUESTS


def a_record(**changes: Any) -> RequestRecord:
    """Return a record with the fields that every record has."""
    values: dict[str, Any] = {
        "level": 3,
        "client": 1,
        "connection": 7,
        "index": 17,
        "request_id": 3_000_000_000_017,
        "phase": Phase.MEASURED,
        "target": "http://h:1/v1",
        "prompt_id": 99,
        "user_messages": 1,
        "outcome": Outcome.OK,
    }
    return RequestRecord(**(values | changes))


def test_record_stamps_move_to_the_epoch_and_durations_do_not() -> None:
    """Every stamp is told from the run's epoch; connect_ns and chunk_us are durations and stay."""
    record = a_record(
        first_sent_ns=1_000,
        sent_ns=1_100,
        first_byte_ns=1_200,
        first_token_ns=1_300,
        first_answer_ns=None,
        last_token_ns=1_500,
        end_ns=1_600,
        connect_ns=77,
        chunk_us=[3, 3, 9],
        stamp=Stamp.KERNEL,
        token_source=TokenSource.USAGE,
    )
    row = records_to_table([record], epoch_ns=1_000).to_pylist()[0]
    stamps = ("first_sent_ns", "sent_ns", "first_byte_ns", "first_token_ns", "last_token_ns", "end_ns")
    assert [row[name] for name in stamps] == [0, 100, 200, 300, 500, 600]
    assert row["scheduled_ns"] is None
    assert row["first_answer_ns"] is None
    assert row["connect_ns"] == 77
    assert row["chunk_us"] == [3, 3, 9]
    assert (row["phase"], row["outcome"], row["stamp"], row["token_source"]) == (
        "measured",
        "ok",
        "kernel",
        "usage",
    )


def test_chunk_times_are_whole_microseconds_after_the_send() -> None:
    """Absolute chunk times become µs after sent_ns, rounded down; times before the send and beyond uint32 are held in range."""
    columns = RequestColumns()
    fields = {name: getattr(a_record(), name) for name in REQUESTS.names[:7]}
    columns.append(
        **fields,
        outcome="ok",
        user_messages=1,
        prompt_id=0,
        sent_ns=10_000,
        chunk_ns=array("q", [9_000, 11_999, 12_000, 10_000 + 2**33 * 1_000]),
        chunk_tokens=[1, 2, 70_000, 0],
    )
    assert len(columns) == 1
    assert columns.num_chunks == 4
    row = columns.take(epoch_ns=0).to_pylist()[0]
    assert row["chunk_us"] == [0, 1, 2, 2**32 - 1]
    assert row["chunk_tokens"] == [1, 2, 65_535, 0]
    assert len(columns) == 0
    assert columns.num_chunks == 0


def test_no_stream_is_null_and_no_chunk_is_empty() -> None:
    """A request that was not streamed has null chunk times; a stream without a chunk has none."""
    columns = RequestColumns()
    fields = {name: getattr(a_record(), name) for name in REQUESTS.names[:7]}
    cases: list[Any] = [None, [], np.array([2_000], np.int64)]
    for chunks in cases:
        columns.append(**fields, outcome="ok", user_messages=1, prompt_id=0, sent_ns=0, chunk_ns=chunks)
    table = columns.take(epoch_ns=0)
    assert table["chunk_us"].to_pylist() == [None, [], [2]]
    assert table["chunk_tokens"].to_pylist() == [None, None, None]


def test_odd_answers_do_not_cost_the_batch() -> None:
    """Numbers beyond their column become null, lone surrogates are replaced, texts are cut at 300 characters."""
    odd = a_record(
        outcome=Outcome.FAILED,
        error_kind=ErrorKind.HTTP_4XX,
        error_text="x\ud800" + "y" * 400,
        prompt_tokens=2**40,
        http_status=70_000,
        reads=2**40,
        finish_reason="\udfff",
    )
    table = records_to_table([odd, a_record(prompt_tokens=5)], epoch_ns=0)
    assert table.schema == REQUESTS
    row = table.to_pylist()[0]
    assert row["error_text"] == "x?" + "y" * 298
    assert row["finish_reason"] == "?"
    assert row["prompt_tokens"] is None
    assert row["http_status"] is None
    assert row["reads"] == 2**31 - 1
    assert table["prompt_tokens"].to_pylist() == [None, 5]


def test_nothing_taken_is_an_empty_table_of_the_same_schema() -> None:
    """An empty flush has every column in its type."""
    assert RequestColumns().take(epoch_ns=5).schema == REQUESTS


optional_stamp = st.none() | st.integers(0, 10**15)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "scheduled_ns": optional_stamp,
                "sent_ns": st.integers(0, 10**15),
                "end_ns": optional_stamp,
                "error_text": st.none() | st.text("ab\n\u65e5", max_size=4),
                "completion_tokens": st.none() | st.integers(0, 2**31 - 1),
                "chunk_us": st.lists(st.integers(0, 2**32 - 1), max_size=6),
                "chunk_tokens": st.none() | st.lists(st.integers(0, 2**16 - 1), max_size=6),
            }
        ),
        max_size=8,
    ),
    st.integers(-(10**15), 10**15),
)
def test_every_record_comes_back(changes: list[dict[str, Any]], epoch_ns: int) -> None:
    """Rows out equal records in, in order, for any mix of absent and present values."""
    records = [a_record(**c) for c in changes]
    table = records_to_table(records, epoch_ns)
    table.validate(full=True)
    assert table.schema == REQUESTS
    for record, row in zip(records, table.to_pylist(), strict=True):
        for name in ("scheduled_ns", "sent_ns", "end_ns"):
            stamp = getattr(record, name)
            assert row[name] == (None if stamp is None else stamp - epoch_ns)
        for name in ("error_text", "completion_tokens", "chunk_us", "chunk_tokens", "request_id", "level"):
            assert row[name] == getattr(record, name)
