"""
Synthetic prompts: random words of given lengths behind a fixed system message (floor F1).

A level has one system message per prefix group, which its requests take in turn; user messages are all different. Nothing is shared
between levels, repeats and the warm-up, so that a prefix cache is as cold at each as at the first. Lengths depend on the number of a
message only: every level, and every packing of the messages into requests, sends a population of the same lengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from distbench.core.calibration import Calibration
from distbench.core.content import messages_id, token_ids_id
from distbench.core.draws import (
    STREAM_SYSTEM,
    STREAM_SYSTEM_LENGTH,
    STREAM_USER,
    STREAM_USER_LENGTH,
    draw_fractions,
    draw_u16,
)
from distbench.core.plan import PromptPlan
from distbench.core.prompts import Prompt
from distbench.core.records import Phase

_MAX_CACHED_SYSTEMS = 1024
# Numbers below which numpy costs more than it saves.
_FEW = 48


class Vocabulary:
    """
    Turns places into words or ids, each as often as the next one, to within one in 65,536 draws.
    """

    __slots__ = ("_ids", "_seed", "_words")

    def __init__(self, calibration: Calibration, seed: int) -> None:
        self._seed = seed
        self._words = calibration.words
        self._ids = calibration.word_ids if calibration.send_ids else None

    def text(self, count: int, stream: str, *place: int | str) -> str:
        """Return count words; a longer text at a place begins with the shorter one."""
        if not self._words:
            raise ValueError("this vocabulary has ids only")
        drawn = draw_u16(count, self._seed, stream, *place)
        return " ".join(map(self._words.__getitem__, _scaled(drawn, len(self._words))))

    def ids(self, count: int, stream: str, *place: int | str) -> tuple[int, ...]:
        """Return count ids, likewise."""
        if not self._ids:
            raise ValueError("this vocabulary has words only")
        drawn = draw_u16(count, self._seed, stream, *place)
        return tuple(map(self._ids.__getitem__, _scaled(drawn, len(self._ids))))


def _scaled(drawn: Sequence[int], size: int) -> Sequence[int]:
    """Return numbers of 0..65535 scaled to 0..size-1."""
    if len(drawn) < _FEW:
        return [(number * size) >> 16 for number in drawn]
    scaled: list[int] = ((np.asarray(drawn, np.int64) * size) >> 16).tolist()
    return scaled


class SyntheticWorkload:
    """
    The synthetic Workload.

    Args:
        plan: Lengths, groups, seed.
        calibration: Vocabulary and what is known of its tokens.
        endpoint: chat | completions; completions with calibration.send_ids sends token ids.
        population: Measured user messages of a level over all packings; the last request holds what is left. None: no end.
        max_user_tokens: Drawn lengths of user messages are lowered to it; None: no bound.
    """

    def __init__(
        self,
        plan: PromptPlan,
        *,
        calibration: Calibration | None = None,
        endpoint: str = "chat",
        population: int | None = None,
        max_user_tokens: int | None = None,
    ) -> None:
        self.plan = plan
        self.calibration = Calibration() if calibration is None else calibration
        self.endpoint = endpoint
        self.population = population
        self.max_user_tokens = max_user_tokens
        self._send_ids = endpoint == "completions" and self.calibration.send_ids
        self._vocabulary = Vocabulary(self.calibration, plan.seed)
        self._systems: dict[tuple[str, int, int], Any] = {}
        self._fixed_system = plan.system_tokens.at(0.5, 0) if plan.system_tokens.is_fixed else None
        self._fixed = (
            self._lengths_from((0.5, 0.5))
            if plan.user_tokens.is_fixed and plan.output_tokens.is_fixed
            else None
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.plan, self.calibration, self.endpoint, self.population, self.max_user_tokens)

    @property
    def seed(self) -> int:
        """Seed of the run."""
        return self.plan.seed

    def num_requests(self) -> int | None:
        """Return None: there are as many as asked."""
        return None

    def send_times_ns(self) -> npt.NDArray[np.int64] | None:
        """Return None: the data prescribes no times."""
        return None

    def prompt(self, *, phase: Phase, level: int, index: int, users_per_request: int) -> Prompt:
        """
        Return the prompt of one request.

        Raises:
            ValueError: the index lies behind the population.
        """
        first = index * users_per_request
        last = first + users_per_request
        if self.population is not None and phase is Phase.MEASURED:
            last = min(last, self.population)
        if not 0 <= first < last:
            raise ValueError(f"request {index} is outside the population of {self.population} user messages")
        system = self.system_tokens(index)
        key = (phase.value, level, index % self.plan.prefix_groups)
        lengths = [self.user_lengths(user) for user in range(first, last)]
        size = system + sum(user for user, _ in lengths)
        max_tokens = sum(output for _, output in lengths)
        if self._send_ids:
            ids: tuple[int, ...] = self._system(key, system) if system else ()
            for user, (length, _) in enumerate(lengths, first):
                ids += self._vocabulary.ids(length, STREAM_USER, phase.value, level, user)
            return Prompt(
                token_ids=ids,
                max_tokens=max_tokens,
                user_messages=last - first,
                prompt_id=token_ids_id(ids),
                expected_prompt_tokens=size,
            )
        messages = [("system", self._system(key, system))] if system else []
        for user, (length, _) in enumerate(lengths, first):
            messages.append(("user", self._vocabulary.text(length, STREAM_USER, phase.value, level, user)))
        return Prompt(
            messages=tuple(messages),
            max_tokens=max_tokens,
            user_messages=last - first,
            prompt_id=messages_id(messages),
            expected_prompt_tokens=self._expected(size, system > 0, last - first),
        )

    def system_tokens(self, index: int) -> int:
        """Return the content tokens of the system message of a request."""
        if self._fixed_system is not None:
            return self._fixed_system
        spec = self.plan.system_tokens
        group = index % self.plan.prefix_groups
        return spec.at(draw_fractions(1, self.plan.seed, STREAM_SYSTEM_LENGTH, group)[0], 0)

    def user_lengths(self, user: int) -> tuple[int, int]:
        """Return (content tokens, output tokens) of a user message of the population, the same in every level."""
        if self._fixed is not None:
            return self._fixed
        return self._lengths_from(draw_fractions(2, self.plan.seed, STREAM_USER_LENGTH, user))

    def _lengths_from(self, fractions: Sequence[float]) -> tuple[int, int]:
        length = self.plan.user_tokens.at(fractions[0])
        if self.max_user_tokens is not None:
            length = min(length, self.max_user_tokens)
        return length, self.plan.output_tokens.at(fractions[1])

    def _system(self, key: tuple[str, int, int], size: int) -> Any:
        """Return the system message of a group, text or ids; kept, since each request of the group has it."""
        system = self._systems.get(key)
        if system is None:
            if len(self._systems) >= _MAX_CACHED_SYSTEMS:
                self._systems.clear()
            make = self._vocabulary.ids if self._send_ids else self._vocabulary.text
            system = self._systems[key] = make(size, STREAM_SYSTEM, *key)
        return system

    def _expected(self, content: int, system: bool, users: int) -> int | None:
        calibration = self.calibration
        if not calibration.exact:
            return None
        if self.endpoint == "chat":
            template = calibration.template
            return None if template is None else content + template.overhead(system=system, users=users)
        if calibration.text_overhead is None or calibration.text_joiner is None:
            return None
        return content + calibration.text_overhead + calibration.text_joiner * (users - 1 + system)


def _rebuild(
    plan: PromptPlan,
    calibration: Calibration,
    endpoint: str,
    population: int | None,
    max_user_tokens: int | None,
) -> SyntheticWorkload:
    return SyntheticWorkload(
        plan,
        calibration=calibration,
        endpoint=endpoint,
        population=population,
        max_user_tokens=max_user_tokens,
    )


def longest_system_tokens(plan: PromptPlan) -> int:
    """Return the content tokens of the longest system message of a plan."""
    if plan.system_tokens.is_fixed:
        return plan.system_tokens.at(0.5, 0)
    return max(
        plan.system_tokens.at(draw_fractions(1, plan.seed, STREAM_SYSTEM_LENGTH, group)[0], 0)
        for group in range(plan.prefix_groups)
    )
