"""
Where every planned request went (floor F3, pure): planned = ok + failed + cut + dropped + lost = rows.

Measured requests only; the warm-up is not counted.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa

from distbench.analysis.arrays import integers, is_word, measured, rows_where
from distbench.core.levels import LevelSpec
from distbench.core.records import Outcome, Phase, RequestRecord, request_id
from distbench.core.shards import level_share
from distbench.store.batches import records_to_table

OUTCOMES = tuple(outcome.value for outcome in Outcome)
UNKNOWN_PROMPT = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Accounting:
    """
    The measured requests of a level.

    Attributes:
        planned: What the plan asked for; the rows themselves where only the duration ended the level.
        ok, failed, cut, dropped, lost: Rows by outcome.
        duplicates: Request ids that have more than one row, ascending, at most 20 of them.
        num_duplicates: Rows beyond the first of their id.
    """

    planned: int
    ok: int
    failed: int
    cut: int
    dropped: int
    lost: int
    duplicates: tuple[int, ...] = ()
    num_duplicates: int = 0

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        return self.ok + self.failed + self.cut + self.dropped + self.lost

    @property
    def balanced(self) -> bool:
        """Return whether every planned request has exactly one row."""
        return self.planned == self.rows and self.num_duplicates == 0

    @property
    def problem(self) -> str | None:
        """Return what is wrong, one sentence; None where it is balanced."""
        if self.num_duplicates:
            return (
                f"{self.num_duplicates} requests were recorded twice (such as request {self.duplicates[0]}): "
                "they may have been sent twice"
            )
        if self.planned != self.rows:
            return f"{self.planned} requests were planned but {self.rows} are accounted for"
        return None


def account(rows: pa.Table, *, planned: int | None) -> Accounting:
    """
    Count the rows of one level by outcome.

    Args:
        rows: Columns phase, outcome, request_id; warm-up rows are left aside.
        planned: Measured requests of the plan; None where only the duration ended the level.
    """
    kept = rows_where(rows, measured(rows), ("outcome", "request_id"))
    counts = {word: int(is_word(kept, "outcome", word).sum()) for word in OUTCOMES}
    ids, times = np.unique(integers(kept, "request_id"), return_counts=True)
    twice = ids[times > 1]
    return Accounting(
        planned=kept.num_rows if planned is None else planned,
        **counts,
        duplicates=tuple(int(i) for i in twice[:20]),
        num_duplicates=int((times - 1).sum()),
    )


def lost_rows(
    spec: LevelSpec, *, client: int, position: int, num_clients: int, num_targets: int, received: pa.Table
) -> pa.Table:
    """
    Make the rows of a dead client's measured requests that never arrived.

    Args:
        spec: The level.
        client: The client's index in the run, for the rows.
        position: Its place among the clients of the level, as its share was computed.
        num_clients: Clients that took part in the level.
        num_targets: Base URLs of the run.
        received: Rows of this level that did arrive, columns phase and index; rows of other clients do no harm.

    Returns:
        Schema REQUESTS, outcome lost: nothing is known of them but their ids. connection is -1, target empty, prompt_id 0. Empty where
        only the duration ends the level, since then nothing more was planned.
    """
    share = level_share(spec, position=position, num_clients=num_clients, num_targets=num_targets)
    if share.open_ended:
        return records_to_table([], 0)
    arrived = set(integers(rows_where(received, measured(received), ("index",)), "index").tolist())
    return records_to_table(
        (
            RequestRecord(
                level=spec.level,
                client=client,
                connection=-1,
                index=index,
                request_id=request_id(spec.level, Phase.MEASURED, index),
                phase=Phase.MEASURED,
                target="",
                prompt_id=UNKNOWN_PROMPT,
                user_messages=spec.users_per_request,
                outcome=Outcome.LOST,
            )
            for index in share.measured
            if index not in arrived
        ),
        0,
    )
