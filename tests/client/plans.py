"""Small workloads, setups and orders for the tests of clients and fleets."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from distbench.client.client import LevelHandle, LoadClient
from distbench.client.messages import (
    ClientEvent,
    ClientSetup,
    Finished,
    Health,
    LevelStart,
    Progress,
    RequestSettings,
    Rows,
)
from distbench.core.levels import LevelSpec
from distbench.core.prompts import Prompt
from distbench.core.records import Phase
from distbench.wire.base import Timeouts, WireTarget

LEAD_NS = 60_000_000


@dataclasses.dataclass(frozen=True)
class TinyWorkload:
    """
    One short user message a request; the same interface as a real workload.

    Attributes:
        follows: Index -> index that it follows; size: requests it holds; times_ns: of a trace; think_ns: after the followed answer.
    """

    max_tokens: int = 3
    seed: int = 0
    size: int | None = None
    follows: tuple[tuple[int, int], ...] = ()
    think_ns: int = 0
    times_ns: tuple[int, ...] | None = None
    text: str = ""

    def prompt(self, *, phase: Phase, level: int, index: int, users_per_request: int) -> Prompt:
        """Return the prompt of one request."""
        return Prompt(
            messages=(("user", f"{phase} {level} {index} {self.text}"),),
            max_tokens=self.max_tokens,
            user_messages=users_per_request,
            prompt_id=level * 10**6 + index,
            expected_prompt_tokens=5,
            follows=dict(self.follows).get(index),
            think_ns=self.think_ns if index in dict(self.follows) else 0,
        )

    def num_requests(self) -> int | None:
        """Return how many there are."""
        return self.size

    def send_times_ns(self) -> npt.NDArray[np.int64] | None:
        """Return the trace's times."""
        return None if self.times_ns is None else np.asarray(self.times_ns, np.int64)


def request_settings(retries: int = 0) -> RequestSettings:
    """Return settings of a streamed chat request."""
    return RequestSettings(
        model="m",
        endpoint="chat",
        stream=True,
        usage=True,
        ignore_eos=True,
        extra_body={},
        retries=retries,
    )


def wire_target(url: str, **changes: Any) -> WireTarget:
    """Return the chat endpoint of a base URL."""
    return WireTarget(url=f"{url}/chat/completions", timeouts=Timeouts(connect_s=5.0), **changes)


def client_setup(
    *urls: str, workload: TinyWorkload | None = None, retries: int = 0, client: int = 0, **target: Any
) -> ClientSetup:
    """Return a setup for these base URLs."""
    return ClientSetup(
        client=client,
        targets=tuple(wire_target(url, **target) for url in urls),
        target_names=urls,
        request=request_settings(retries),
        workload=workload or TinyWorkload(),
    )


def level(**changes: Any) -> LevelSpec:
    """Return a level of 2 connections, 8 requests and no warm-up, unless told otherwise."""
    return LevelSpec(**{"level": 3, "connections": 2, "requests": 8, "warmup": 0, **changes})


def order(spec: LevelSpec, **changes: Any) -> LevelStart:
    """Return the order of a level for the only client, to start very soon."""
    now_ns = time.monotonic_ns()
    values = {
        "spec": spec,
        "position": 0,
        "num_clients": 1,
        "epoch_ns": now_ns,
        "start_ns": now_ns + LEAD_NS,
        **changes,
    }
    return LevelStart(**values)


@dataclasses.dataclass
class Result:
    """Everything that a client told about a level."""

    events: list[ClientEvent]

    @property
    def table(self) -> pa.Table:
        """All rows."""
        tables = [event.table for event in self.events if isinstance(event, Rows)]
        return pa.concat_tables(tables) if tables else pa.table({})

    @property
    def rows(self) -> list[dict[str, Any]]:
        """All rows, by phase and index."""
        return sorted(self.table.to_pylist(), key=lambda row: (row["phase"] != "warmup", row["index"]))

    def column(self, name: str) -> list[Any]:
        """Return one column of rows."""
        return [row[name] for row in self.rows]

    @property
    def health(self) -> list[dict[str, Any]]:
        """All health samples."""
        return [row for event in self.events if isinstance(event, Health) for row in event.table.to_pylist()]

    @property
    def progress(self) -> list[Progress]:
        """All counters."""
        return [event for event in self.events if isinstance(event, Progress)]

    @property
    def finished(self) -> Finished:
        """The last word."""
        last = self.events[-1]
        assert isinstance(last, Finished)
        return last


def collect(handle: LevelHandle, limit_s: float = 20.0) -> Result:
    """Take all events until the last word."""
    events: list[ClientEvent] = []
    end_s = time.monotonic() + limit_s
    while not handle.finished:
        assert time.monotonic() < end_s, "the level does not end"
        events += handle.events(0.5)
    return Result(events)


def run_level(
    setup: ClientSetup, start: LevelStart, *, during: Callable[[LoadClient], None] | None = None
) -> Result:
    """Run one level on a client of its own."""
    return run_levels(setup, [start], during=during)[0]


def run_levels(
    setup: ClientSetup, starts: Sequence[LevelStart], *, during: Callable[[LoadClient], None] | None = None
) -> list[Result]:
    """Run levels one after the other on a client of their own."""
    client = LoadClient(setup.client)
    client.start()
    try:
        client.setup(setup)
        results = []
        for start in starts:
            handle = client.start_level(start)
            if during is not None:
                during(client)
            results.append(collect(handle))
        return results
    finally:
        client.close()


def wait_until(condition: Callable[[], bool], limit_s: float = 20.0) -> None:
    """Return as soon as the condition holds."""
    end_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end_s, "waited in vain"
        time.sleep(0.01)
