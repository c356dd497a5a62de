"""
Replaying recorded chats: single requests, or conversations turn by turn (floor F1).

The rows are played in the file's order, the same in every level, so that levels are comparable; past its end the file starts again
(another lap). A short mark at the beginning of the first message, different for each level, phase and lap, keeps a server's prefix
cache from knowing the text of an earlier one, while what the rows of one level share stays shared.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from distbench.core.content import Messages, fewest_tokens_of_text, messages_id
from distbench.core.datasets import DatasetReport, Turn
from distbench.core.draws import STREAM_USER_LENGTH, draw_fractions
from distbench.core.plan import PromptPlan
from distbench.core.prompts import Prompt
from distbench.core.records import Phase
from distbench.errors import PlanError
from distbench.units import s_to_ns

_NONE = -1


class ReplayWorkload:
    """
    The Workload of recorded chats.

    The texts lie in one array of bytes, which crosses to a client without being copied piece by piece.

    Args:
        plan: Output tokens of rows that name none, think time, seed.
        conversations: As core/datasets.py reads them; not empty. Each turn's messages begin with those of the turn before.
        report: What was read.
        max_model_len: Turns that cannot fit it, and those after them, are left out; None: not known.
        population: Measured user messages of a level over all packings; the last request holds what is left. None: no end.

    Raises:
        PlanError: no turn fits.
    """

    def __init__(
        self,
        plan: PromptPlan,
        conversations: Sequence[Sequence[Turn]],
        report: DatasetReport,
        *,
        max_model_len: int | None = None,
        population: int | None = None,
    ) -> None:
        self.plan = plan
        self.population = population
        self.report = report
        chats: list[bytes] = []
        table: list[tuple[int, int, int, int]] = []
        self.num_too_long = 0
        for turns in conversations:
            fitting = self._fitting(len(table), turns, max_model_len)
            self.num_too_long += len(turns) - len(fitting)
            if not fitting:
                continue
            for number, turn in enumerate(fitting):
                wanted = _NONE if turn.max_tokens is None else turn.max_tokens
                table.append((len(chats), len(turn.messages), wanted, number))
            chats.append(json.dumps(fitting[-1].messages).encode())
        if not table:
            raise PlanError(f"no request of the dataset fits the context of {max_model_len} tokens")
        self._table = np.array(table, dtype=np.int32)
        self._ends = np.cumsum([0, *map(len, chats)], dtype=np.int64)
        self._blob = np.frombuffer(b"".join(chats), dtype=np.uint8)
        self._last: tuple[int, list[tuple[str, str]]] = (_NONE, [])

    @property
    def seed(self) -> int:
        """Seed of the run."""
        return self.plan.seed

    @property
    def is_single_turn(self) -> bool:
        """True where no request follows another."""
        return not bool(self._table[:, 3].any())

    def num_requests(self) -> int | None:
        """Return the requests of one lap, of one row each."""
        return len(self._table)

    def send_times_ns(self) -> npt.NDArray[np.int64] | None:
        """Return None: the data prescribes no times."""
        return None

    def prompt(self, *, phase: Phase, level: int, index: int, users_per_request: int) -> Prompt:
        """
        Return the prompt of one request.

        Raises:
            PlanError: rows that are more than one user message behind a system message are to be packed.
        """
        first = index * users_per_request
        last = first + users_per_request
        if self.population is not None and phase is Phase.MEASURED:
            last = min(last, self.population)
        lap, row = divmod(first, len(self._table))
        messages = self._messages(row)
        max_tokens = self._max_tokens(row)
        for other in range(first + 1, last):
            messages += _packable(self._messages(other % len(self._table)))
            max_tokens += self._max_tokens(other % len(self._table))
        if users_per_request > 1:
            _packable(self._messages(row))
        role, content = messages[0]
        messages[0] = (role, f"[{self.plan.seed}.{level}{phase.value[0]}{lap}] {content}")
        is_later_turn = users_per_request == 1 and self._table[row, 3] > 0
        return Prompt(
            messages=tuple(messages),
            max_tokens=max_tokens,
            user_messages=_new_user_messages(messages),
            prompt_id=messages_id(messages),
            follows=index - 1 if is_later_turn else None,
            think_ns=s_to_ns(self.plan.think_time_s) if is_later_turn else 0,
        )

    def check_packing(self) -> None:
        """
        Check that rows can be packed into one request.

        Raises:
            PlanError: one cannot.
        """
        if not self.is_single_turn:
            raise PlanError("users-per-request above 1 cannot pack conversations: their turns go one by one")
        for row in range(len(self._table)):
            _packable(self._messages(row))

    def _messages(self, row: int) -> list[tuple[str, str]]:
        chat, num_messages = int(self._table[row, 0]), int(self._table[row, 1])
        if self._last[0] != chat:
            data = self._blob[self._ends[chat] : self._ends[chat + 1]].tobytes()
            self._last = (chat, [(role, content) for role, content in json.loads(data)])
        return self._last[1][:num_messages]

    def _max_tokens(self, row: int) -> int:
        wanted = int(self._table[row, 2])
        return self._drawn_tokens(row) if wanted == _NONE else wanted

    def _drawn_tokens(self, row: int) -> int:
        spec = self.plan.output_tokens
        if spec.is_fixed:
            return spec.at(0.5)
        return spec.at(draw_fractions(2, self.plan.seed, STREAM_USER_LENGTH, row)[1])

    def _fitting(self, row: int, turns: Sequence[Turn], max_model_len: int | None) -> Sequence[Turn]:
        """Return the turns up to the first that is sure not to fit."""
        if max_model_len is None:
            return turns
        for number, turn in enumerate(turns):
            output = self._drawn_tokens(row + number) if turn.max_tokens is None else turn.max_tokens
            if sum(fewest_tokens_of_text(text) for _, text in turn.messages) + output > max_model_len:
                return turns[:number]
        return turns


def _packable(messages: Sequence[tuple[str, str]]) -> Sequence[tuple[str, str]]:
    """Return the user message of a row; a system message stays with the first row of a request."""
    body = messages[1:] if messages[0][0] == "system" else messages
    if len(body) != 1 or body[0][0] != "user":
        raise PlanError(
            "users-per-request above 1 can pack only rows of one user message (and a system message before it)"
        )
    return body


def _new_user_messages(messages: Messages | list[tuple[str, str]]) -> int:
    """Return how many user messages the request asks to answer: those behind the last answer."""
    count = 0
    for role, _ in reversed(messages):
        if role == "assistant":
            break
        count += role == "user"
    return max(1, count)
