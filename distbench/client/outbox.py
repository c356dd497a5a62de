"""The way of a level's events from the load's thread to whoever listens (floor F3)."""

from __future__ import annotations

import collections
import threading
import time

from distbench.client.messages import ClientEvent, Finished, Progress, Rows

_CROWDED = 64


class Outbox:
    """
    A queue of events from one thread to another.

    Rows are never dropped; of progress that nobody collects only the latest matters, so it is left out while the queue is crowded.
    """

    def __init__(self) -> None:
        self._events: collections.deque[ClientEvent] = collections.deque()
        self._changed = threading.Condition()
        self._held_bytes = 0
        self._failure: BaseException | None = None
        self._ended = False

    def put(self, event: ClientEvent) -> None:
        """Add an event; Finished is the last one. Never blocks for long."""
        with self._changed:
            if isinstance(event, Progress) and len(self._events) > _CROWDED:
                return
            self._events.append(event)
            if isinstance(event, Rows):
                self._held_bytes += event.table.nbytes
            self._ended = self._ended or isinstance(event, Finished)
            self._changed.notify_all()

    def fail(self, failure: BaseException) -> None:
        """End the stream by a fault of the client itself; the listener gets it after the events before it."""
        with self._changed:
            self._failure = failure
            self._ended = True
            self._changed.notify_all()

    def get(self, timeout_s: float) -> list[ClientEvent]:
        """
        Return all events there are, waiting for the first one.

        Args:
            timeout_s: How long to wait at most.

        Returns:
            Events in order; empty where none came in time or the stream has ended.

        Raises:
            BaseException: what fail() was given, once the events before it were returned.
        """
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while not self._events and not self._ended:
                remaining = deadline - time.monotonic()
                if remaining <= 0 or not self._changed.wait(remaining):
                    break
            events = list(self._events)
            self._events.clear()
            self._held_bytes = 0
            if not events and self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure
            return events

    @property
    def drained(self) -> bool:
        """True once the last event was put and everything was taken."""
        with self._changed:
            return self._ended and not self._events and self._failure is None

    @property
    def held_bytes(self) -> int:
        """Bytes of rows that wait to be collected."""
        return self._held_bytes
