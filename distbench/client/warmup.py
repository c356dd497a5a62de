"""What is slow only the first time, done before any level (floor F3)."""

from __future__ import annotations

from array import array

import pyarrow as pa

from distbench.core.records import Outcome, Phase
from distbench.store.batches import RequestColumns
from distbench.store.schema import CLIENTS


def warm_up() -> None:
    """
    Convert a row and a sample once.

    The first conversion imports what Arrow wants of pandas, for more than a second: in a level that would stop the loop.
    """
    columns = RequestColumns()
    columns.append(
        level=0,
        client=0,
        connection=0,
        index=0,
        request_id=0,
        phase=Phase.WARMUP,
        target="",
        outcome=Outcome.OK,
        user_messages=1,
        prompt_id=0,
        sent_ns=0,
        chunk_ns=array("q", [1]),
        chunk_tokens=[1],
    )
    pa.concat_tables([columns.take(0)])
    pa.Table.from_pylist([], schema=CLIENTS)
