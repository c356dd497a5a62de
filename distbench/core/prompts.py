"""
What a workload gives the load engine: prompts, each a pure function of its place in the run (floor F1).

The workloads themselves are in core/workload.py and the modules beside it.
"""

from __future__ import annotations

import dataclasses
from typing import Protocol

import numpy as np
import numpy.typing as npt

from distbench.core.records import Phase


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """
    One request's content.

    Attributes:
        messages: (role, content) in order, for chat; completions joins the contents by blank lines. Empty where token_ids are given.
        token_ids: Exact prompt for /completions; None elsewhere.
        max_tokens: Output tokens to ask for, all packed user messages together; >= 1.
        user_messages: User messages in it; >= 1.
        prompt_id: Equal exactly where the content is equal; non-negative, fits int64.
        expected_prompt_tokens: Tokens that the workload aimed at; None where it cannot say.
        not_before_ns: Time from the level's start before which it must not be sent (traces, think time); None: at once.
        follows: Index of the request of the same level whose answer must have ended before this one is sent (next turn of a
            conversation); None: independent.
        think_ns: Pause between the end of the answer that it follows and its sending; 0 without one.
    """

    messages: tuple[tuple[str, str], ...] = ()
    token_ids: tuple[int, ...] | None = None
    max_tokens: int
    user_messages: int = 1
    prompt_id: int
    expected_prompt_tokens: int | None = None
    not_before_ns: int | None = None
    follows: int | None = None
    think_ns: int = 0


class Workload(Protocol):
    """
    Prompts of one run. Picklable; every client holds an equal copy and computes only what it sends.
    """

    @property
    def seed(self) -> int:
        """Seed of the run; the send times of an open loop are drawn from it too."""
        ...

    def prompt(self, *, phase: Phase, level: int, index: int, users_per_request: int) -> Prompt:
        """
        Return the prompt of one request: the same for equal arguments on every machine.

        Levels, repeats (which are levels of their own) and the warm-up never share a prompt, so that a warm prefix cache cannot
        bend the curve from one level to the next.
        """
        ...

    def num_requests(self) -> int | None:
        """Return how many requests the data holds; None: as many as asked."""
        ...

    def send_times_ns(self) -> npt.NDArray[np.int64] | None:
        """Return the send times that the data prescribes, ascending, ns from the level's start; None where it has none."""
        ...
