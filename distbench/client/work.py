"""One request ready to be sent, and the maker of them (floor F3)."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Iterator
from typing import Protocol

from distbench.core.levels import LevelSpec
from distbench.core.prompts import Prompt, Workload
from distbench.core.records import Phase, request_id

Encode = Callable[[Prompt], bytes]
"""Turns a prompt into the JSON body of a request."""


@dataclasses.dataclass(slots=True, eq=False)
class Work:
    """
    One request, built. The prompt's text lives on only in the body, and the body only until the answer is there.

    Attributes:
        phase, index, request_id: Which request.
        body: JSON; emptied after use.
        scheduled_ns: When the plan wants it sent, on the client's clock; None in closed loop.
        not_before_ns: Earliest sending time on the client's clock; None: any.
        follows: request_id of the request whose answer must have ended before; None: none.
        think_ns: Pause after that answer.
    """

    phase: Phase
    index: int
    request_id: int
    body: bytes
    prompt_id: int
    user_messages: int
    max_tokens: int
    expected_prompt_tokens: int | None
    scheduled_ns: int | None = None
    not_before_ns: int | None = None
    follows: int | None = None
    think_ns: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Leftover:
    """A planned request that was never taken."""

    phase: Phase
    index: int
    scheduled_ns: int | None


def handed_over(future: asyncio.Future[Work | None]) -> Work | None:
    """Return the request that a lane was given but, being cancelled in the same moment, did not take; None: there was none."""
    return future.result() if future.done() and not future.cancelled() else None


class WorkBuilder:
    """Makes the requests of one level."""

    def __init__(self, spec: LevelSpec, workload: Workload, encode: Encode, start_ns: int) -> None:
        """
        Prepare.

        Args:
            spec: The level.
            workload: Gives the prompts.
            encode: Makes the bodies.
            start_ns: The level's start on the client's clock; a prompt's not_before_ns counts from it.
        """
        self._spec = spec
        self._workload = workload
        self._encode = encode
        self._start_ns = start_ns

    def build(self, phase: Phase, index: int, scheduled_ns: int | None = None) -> Work:
        """Build one request; the same for the same arguments."""
        spec = self._spec
        prompt = self._workload.prompt(
            phase=phase, level=spec.level, index=index, users_per_request=spec.users_per_request
        )
        later_ns = prompt.not_before_ns
        return Work(
            phase=phase,
            index=index,
            request_id=request_id(spec.level, phase, index),
            body=self._encode(prompt),
            prompt_id=prompt.prompt_id,
            user_messages=prompt.user_messages,
            max_tokens=prompt.max_tokens,
            expected_prompt_tokens=prompt.expected_prompt_tokens,
            scheduled_ns=scheduled_ns,
            not_before_ns=None if later_ns is None else self._start_ns + later_ns,
            follows=None if prompt.follows is None else request_id(spec.level, phase, prompt.follows),
            think_ns=prompt.think_ns,
        )

    def rebuilt(self, work: Work) -> Work:
        """Return the same request with its body, which is dropped while a request is held back."""
        if not work.body:
            work.body = self.build(work.phase, work.index).body
        return work


class Source(Protocol):
    """Where the lanes get their requests: a pool (closed loop) or a schedule (open loop)."""

    def take(self, lane: int) -> Work | None:
        """Return a request that may be sent now; None where there is none (yet)."""
        ...

    def wait(self, lane: int) -> Awaitable[Work | None]:
        """Wait for one; None: there will be none any more, the lane may end."""
        ...

    def done(self, work: Work) -> None:
        """Learn that an answer has ended, in whatever way."""
        ...

    def prepare(self, until_ns: int) -> bool:
        """Build ahead until a time on the client's clock; return whether there is more to build now."""
        ...

    def close(self) -> None:
        """Hand out nothing more; waiting lanes get None."""
        ...

    def leftovers(self) -> Iterator[Leftover]:
        """Yield the planned requests that were not taken, after close()."""
        ...

    @property
    def measured_start_ns(self) -> int | None:
        """When the first measured request was taken; None: not yet."""
        ...

    @property
    def pool_empty_ns(self) -> int | None:
        """When the last measured request was taken; None: not yet, or the level has no last one."""
        ...
