"""A level under way on Ray actors: their streams of events, read as one (floor F4)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayError

from distbench.client.messages import ClientEvent, Finished, Lost

# A client speaks twice per second. Its node may be paused for a moment, but not for so long.
SILENCE_LIMIT_S = 20.0
_FETCH_LIMIT_S = 10.0


class RayLevelRun:
    """
    A level under way on the actors.

    Attributes:
        clients: Indices of the clients that take part, in the order of their positions.
        start_ns: When the first request is to be sent, on the driver's CLOCK_MONOTONIC.
    """

    def __init__(
        self,
        streams: Mapping[int, Any],
        actors: Mapping[int, Any],
        *,
        start_ns: int,
        on_lost: Callable[[int, str], None],
        silence_limit_s: float,
    ) -> None:
        """
        Follow a level.

        Args:
            streams: The generator of each client's events.
            actors: All actors by client.
            start_ns: As ordered.
            on_lost: Told of each client that is lost, once.
            silence_limit_s: A client that sends nothing for so long is lost.
        """
        self.clients = tuple(streams)
        self.start_ns = start_ns
        self._streams = dict(streams)
        self._actors = actors
        self._on_lost = on_lost
        self._silence_limit_s = silence_limit_s
        now_s = time.monotonic()
        self._heard_s = dict.fromkeys(self._streams, now_s)

    def events(self, timeout_s: float) -> Iterator[ClientEvent]:
        """Yield the events there are, waiting up to timeout_s for the first."""
        if not self._streams:
            return
        by_stream = {stream: client for client, stream in self._streams.items()}
        ready, _ = ray.wait(list(by_stream), num_returns=1, timeout=timeout_s, fetch_local=False)
        if ready:
            # All that are ready, not only the one that woke us.
            ready, _ = ray.wait(list(by_stream), num_returns=len(by_stream), timeout=0, fetch_local=False)
        for stream in ready:
            yield from self._next_of(by_stream[stream], stream)
        now_s = time.monotonic()
        for client, heard_s in list(self._heard_s.items()):
            if client in self._streams and now_s - heard_s > self._silence_limit_s:
                yield self._lose(client, f"nothing heard for {self._silence_limit_s:g} s")

    def finished(self) -> bool:
        """True once every client has had its last word."""
        return not self._streams

    def stop(self) -> None:
        """Ask all clients to cut and report; returns at once."""
        for client in self._streams:
            self._actors[client].stop.remote()

    def _next_of(self, client: int, stream: Any) -> Iterator[ClientEvent]:
        try:
            events: list[ClientEvent] = ray.get(next(stream), timeout=_FETCH_LIMIT_S)
        except StopIteration:
            yield self._lose(client, "its stream ended without a last word")
        except ActorUnavailableError as error:
            yield self._lose(client, f"not reachable: {_reason(error)}")
        except RayActorError as error:
            yield self._lose(client, f"its process or host died: {_reason(error)}")
        except RayError as error:
            yield self._lose(client, _reason(error))
        else:
            self._heard_s[client] = time.monotonic()
            if events and isinstance(events[-1], Finished):
                del self._streams[client]
            yield from events

    def _lose(self, client: int, reason: str) -> Lost:
        del self._streams[client]
        self._on_lost(client, reason)
        return Lost(client=client, reason=reason)


def _reason(error: BaseException) -> str:
    cause = getattr(error, "cause", None)
    text = f"{type(cause).__name__}: {cause}" if isinstance(cause, BaseException) else str(error)
    return " ".join(text.split())[:300] or type(error).__name__
