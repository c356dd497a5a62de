"""
From a finished exchange to a row (floor F3): off the hot path, in slices, in bounded memory.

A lane puts its finished exchange here and sends the next request at once; the background reads what has piled up when the loop has
time. Rows become Arrow tables a few hundred at a time, so that no conversion holds the loop up for long.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable
from time import monotonic_ns

import pyarrow as pa

from distbench.client.codec import Codec
from distbench.client.counters import LevelCounters
from distbench.client.messages import ClientSetup, LevelStart
from distbench.client.work import Leftover, Work
from distbench.core.openai_api import Answer
from distbench.core.records import Outcome, Phase, request_id
from distbench.store.batches import RequestColumns
from distbench.wire.base import Exchange

# Rows and chunk times of one conversion: some milliseconds of work.
_ROWS_PER_TABLE = 256
_CHUNKS_PER_TABLE = 65_536
# Unread answers beyond which reading them takes precedence over quick turns of the loop.
_MANY_UNREAD = 2_048
_MANY_UNREAD_BYTES = 64 * 2**20
_NO_PROMPT = -1


@dataclasses.dataclass(slots=True, eq=False)
class _Unread:
    work: Work
    exchange: Exchange
    connection: int
    target: int
    cut: bool


class Finisher:
    """Reads finished exchanges and gathers their rows."""

    def __init__(
        self,
        setup: ClientSetup,
        order: LevelStart,
        codec: Codec,
        counters: LevelCounters,
        *,
        on_added: Callable[[], object],
    ) -> None:
        """
        Prepare.

        Args:
            setup: Of the client.
            order: The level.
            codec: Reads answers.
            counters: Of the level; what the answers told is added here.
            on_added: Called when there is something to read.
        """
        self._client = setup.client
        self._target_names = setup.target_names
        self._level = order.spec.level
        self._users_per_request = order.spec.users_per_request
        self._epoch_ns = order.epoch_ns
        self._codec = codec
        self._counters = counters
        self._unread: collections.deque[_Unread] = collections.deque()
        self._unread_bytes = 0
        self._columns = RequestColumns()
        self._tables: list[pa.Table] = []
        self._on_added = on_added

    @property
    def waiting(self) -> int:
        """Answers received and not yet read."""
        return len(self._unread)

    @property
    def is_behind(self) -> bool:
        """True while so much is unread that memory matters more than quick turns."""
        return len(self._unread) > _MANY_UNREAD or self._unread_bytes > _MANY_UNREAD_BYTES

    def add(self, work: Work, exchange: Exchange, connection: int, target: int, *, cut: bool) -> None:
        """Take over a finished exchange; cheap."""
        work.body = b""
        was_idle = not self._unread
        self._unread.append(_Unread(work, exchange, connection, target, cut))
        self._unread_bytes += exchange.held_bytes
        if was_idle:
            self._on_added()

    def step(self, until_ns: int) -> bool:
        """Read answers until a time on the client's clock; return whether any are left."""
        unread = self._unread
        while unread:
            entry = unread.popleft()
            self._unread_bytes -= entry.exchange.held_bytes
            self._read(entry)
            if monotonic_ns() >= until_ns:
                break
        return bool(unread)

    def drop(self, leftover: Leftover) -> None:
        """
        Give a row to a request that was never taken.

        Its prompt was never made, which could take long for many; its id stands as -1.
        """
        if leftover.phase is Phase.MEASURED:
            self._counters.dropped += 1
        self._columns.append(
            level=self._level,
            client=self._client,
            connection=-1,
            index=leftover.index,
            request_id=request_id(self._level, leftover.phase, leftover.index),
            phase=leftover.phase,
            target="",
            outcome=Outcome.DROPPED,
            user_messages=self._users_per_request,
            prompt_id=_NO_PROMPT,
            scheduled_ns=leftover.scheduled_ns,
        )
        self._convert_when_full()

    def take(self) -> list[pa.Table]:
        """Return the rows gathered since the last call, stamps relative to the run's epoch."""
        self._convert()
        tables, self._tables = self._tables, []
        return tables

    def _read(self, entry: _Unread) -> None:
        work, exchange = entry.work, entry.exchange
        answer = self._codec.read(exchange)
        ended = Outcome.OK if answer.error_kind is None else Outcome.FAILED
        outcome = Outcome.CUT if entry.cut else ended
        is_failed = outcome is Outcome.FAILED
        lag_ns = exchange.client_lag_ns
        self._columns.append(
            level=self._level,
            client=self._client,
            connection=entry.connection,
            index=work.index,
            request_id=work.request_id,
            phase=work.phase,
            target=self._target_names[entry.target],
            outcome=outcome,
            user_messages=work.user_messages,
            prompt_id=work.prompt_id,
            scheduled_ns=work.scheduled_ns,
            first_sent_ns=exchange.first_sent_ns,
            sent_ns=exchange.sent_ns,
            first_byte_ns=exchange.first_byte_ns,
            end_ns=exchange.end_ns,
            connect_ns=exchange.connect_ns,
            error_kind=answer.error_kind if is_failed else None,
            http_status=exchange.status,
            error_text=answer.error_text if is_failed else None,
            bytes_received=exchange.bytes_received,
            reads=exchange.reads,
            attempts=exchange.attempts,
            reconnects=exchange.reconnects,
            stamp=exchange.stamp,
            client_lag_us=None if lag_ns is None else lag_ns // 1_000,
            max_tokens=work.max_tokens,
            expected_prompt_tokens=work.expected_prompt_tokens,
            **self._codec.columns(answer),
        )
        self._count(work.phase, outcome, answer)
        self._convert_when_full()

    def _convert_when_full(self) -> None:
        if len(self._columns) >= _ROWS_PER_TABLE or self._columns.num_chunks >= _CHUNKS_PER_TABLE:
            self._convert()

    def _convert(self) -> None:
        if len(self._columns):
            self._tables.append(self._columns.take(self._epoch_ns))

    def _count(self, phase: Phase, outcome: Outcome, answer: Answer) -> None:
        counters = self._counters
        if outcome is Outcome.FAILED:
            counters.last_error = f"{answer.error_kind}: {answer.error_text}"
        if phase is Phase.WARMUP:
            counters.warmup_done += 1
            return
        if outcome is Outcome.OK:
            counters.ok += 1
        elif outcome is Outcome.FAILED:
            counters.failed += 1
        else:
            counters.cut += 1
        counters.output_tokens += (
            len(answer.chunk_ns) if answer.completion_tokens is None else answer.completion_tokens
        )
