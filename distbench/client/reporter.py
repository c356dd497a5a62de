"""What a client tells while a level runs: rows, counters, health (floor F3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic_ns

import pyarrow as pa

from distbench.client.counters import LevelCounters
from distbench.client.finishing import Finisher
from distbench.client.health import HealthSampler
from distbench.client.lane import Lane
from distbench.client.messages import Health, LevelStart, Progress, Rows
from distbench.client.outbox import Outbox
from distbench.units import NS_PER_MS, NS_PER_S

_PROGRESS_NS = 500 * NS_PER_MS
_HEALTH_NS = NS_PER_S
_FLUSH_NS = NS_PER_S
# Rows that nobody collects: beyond this the level ends rather than the machine's memory.
_MAX_HELD_BYTES = 512 * 2**20
# Growth of the process after which its cyclic garbage is collected although a level runs.
_RELIEF_BYTES = 128 * 2**20


class Reporter:
    """Sends rows at least once per second, health samples once per second, counters twice per second."""

    def __init__(
        self,
        client: int,
        order: LevelStart,
        outbox: Outbox,
        counters: LevelCounters,
        finisher: Finisher,
        lanes: Sequence[Lane],
        relieve: Callable[[], None],
    ) -> None:
        """
        Begin.

        Args:
            client: Index of the client.
            order: The level.
            outbox: Where everything goes.
            counters: Of the level.
            finisher: Of the level.
            lanes: Of the level.
            relieve: Called when the process has grown.
        """
        self._client = client
        self._epoch_ns = order.epoch_ns
        self._outbox = outbox
        self._counters = counters
        self._finisher = finisher
        self._lanes = lanes
        self._relieve = relieve
        self._sampler = HealthSampler(
            level=order.spec.level,
            client=client,
            connections=len(lanes),
            epoch_ns=order.epoch_ns,
            counters=counters,
        )
        now_ns = monotonic_ns()
        self._progress_due_ns = now_ns
        self._health_due_ns = order.start_ns + _HEALTH_NS
        self._flush_due_ns = now_ns + _FLUSH_NS
        self._relieved_at_bytes: int | None = None

    def level_starts(self) -> None:
        """Learn that the first request is about to be sent."""
        self._sampler.restart()
        self._health_due_ns = monotonic_ns() + _HEALTH_NS

    def tick(self, now_ns: int) -> bool:
        """Send what is due; return whether too many rows wait to be collected."""
        if now_ns >= self._flush_due_ns:
            self._flush_due_ns = now_ns + _FLUSH_NS
            self._send_rows()
        if now_ns >= self._health_due_ns:
            self._health_due_ns = now_ns + _HEALTH_NS
            self._sample()
            self._send_health()
        if now_ns >= self._progress_due_ns:
            self._progress_due_ns = now_ns + _PROGRESS_NS
            self._send_progress(now_ns)
        return self._outbox.held_bytes > _MAX_HELD_BYTES

    def final(self) -> None:
        """Send all that is left; the level has ended."""
        self._send_rows()
        self._sample()
        self._send_health()
        self._send_progress(monotonic_ns())

    def _send_rows(self) -> None:
        tables = self._finisher.take()
        if tables:
            self._outbox.put(Rows(client=self._client, table=pa.concat_tables(tables)))

    def _sample(self) -> None:
        self._look()
        reads, received = self._running()
        rss_bytes = self._sampler.sample(
            waiting_parse=self._finisher.waiting, running_reads=reads, running_bytes=received
        )
        if self._relieved_at_bytes is None:
            self._relieved_at_bytes = rss_bytes
        elif rss_bytes > self._relieved_at_bytes + _RELIEF_BYTES:
            self._relieve()
            self._relieved_at_bytes = rss_bytes

    def _send_health(self) -> None:
        table = self._sampler.take()
        if table is not None:
            self._outbox.put(Health(client=self._client, table=table))

    def _send_progress(self, now_ns: int) -> None:
        counters = self._counters
        self._look()
        reads, _ = self._running()
        self._outbox.put(
            Progress(
                client=self._client,
                connected=counters.connected,
                in_flight=counters.in_flight.count,
                waiting_parse=self._finisher.waiting,
                warmup_done=counters.warmup_done,
                sent=counters.sent,
                ok=counters.ok,
                failed=counters.failed,
                cut=counters.cut,
                dropped=counters.dropped,
                output_tokens=counters.output_tokens + reads,
                last_error=counters.last_error,
                at_ns=now_ns - self._epoch_ns,
            )
        )

    def _look(self) -> None:
        self._counters.connected = sum(lane.wire.connected for lane in self._lanes)

    def _running(self) -> tuple[int, int]:
        """Return reads and bytes of the requests in flight; a read is about a token, as long as the server streams."""
        told = [lane.received() for lane in self._lanes]
        return sum(reads for reads, _ in told), sum(received for _, received in told)
