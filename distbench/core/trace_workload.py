"""The Workload of a trace: made-up text of the recorded lengths, at the recorded times where the pattern asks for it (floor F1)."""

from __future__ import annotations

import itertools
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from distbench.core.calibration import Calibration
from distbench.core.content import messages_id, token_ids_id
from distbench.core.draws import STREAM_BLOCK, STREAM_USER
from distbench.core.plan import PromptPlan
from distbench.core.prompts import Prompt
from distbench.core.records import Phase
from distbench.core.synthetic import Vocabulary
from distbench.core.traces import BLOCK_TOKENS, Trace

_MAX_CACHED_BLOCKS = 2048

# (tokens, stream, place...), as a Vocabulary takes it.
_Piece: TypeAlias = tuple[int, str, str, int, int] | tuple[int, str, str, int, int, int]


class TraceWorkload:
    """
    Prompts of a trace.

    Args:
        plan: Seed and trace speed.
        trace: What was recorded.
        calibration: Vocabulary; where the template is known, a prompt with it has the recorded length.
        endpoint: chat | completions.
        timed: The requests go at the recorded times (pattern trace); then the first warmup rows are the warm-up.
        warmup: Warm-up requests of a level, where timed.
        max_model_len: Rows over it are left out; None: not known.
    """

    def __init__(
        self,
        plan: PromptPlan,
        trace: Trace,
        *,
        calibration: Calibration | None = None,
        endpoint: str = "chat",
        timed: bool = False,
        warmup: int = 0,
        max_model_len: int | None = None,
    ) -> None:
        self.plan = plan
        self.trace = trace
        self.report = trace.report
        self.calibration = Calibration() if calibration is None else calibration
        self.endpoint = endpoint
        self.timed = timed
        self.warmup = warmup if timed else 0
        fits = np.ones(len(trace.times_ns), dtype=bool)
        if max_model_len is not None:
            fits = trace.input_tokens + trace.output_tokens <= max_model_len
        self._rows = np.flatnonzero(fits)
        self.num_too_long = len(fits) - len(self._rows)
        self._send_ids = endpoint == "completions" and self.calibration.send_ids
        self._overhead = self._known_overhead()
        self._reset()

    def _reset(self) -> None:
        self._vocabulary = Vocabulary(self.calibration, self.plan.seed)
        self._blocks: dict[_Piece, str] = {}

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name not in ("_vocabulary", "_blocks")}

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state)
        self._reset()

    @property
    def seed(self) -> int:
        """Seed of the run."""
        return self.plan.seed

    def num_requests(self) -> int | None:
        """Return the requests of the trace that can be sent, without the warm-up that a timed replay takes from them."""
        return max(0, len(self._rows) - self.warmup)

    def send_times_ns(self) -> npt.NDArray[np.int64] | None:
        """Return the recorded times at the plan's speed, warm-up first; None where the pattern is another."""
        if not self.timed:
            return None
        times = self.trace.times_ns[self._rows]
        offsets: npt.NDArray[np.int64] = np.rint((times - times[0]) / self.plan.trace_speed).astype(np.int64)
        return offsets

    def prompt(self, *, phase: Phase, level: int, index: int, users_per_request: int) -> Prompt:
        """
        Return the prompt of one request; past the end of the trace it starts again with other text.

        Raises:
            ValueError: more than one user message is asked for.
        """
        if users_per_request != 1:
            raise ValueError("a trace's requests cannot be packed")
        offset = self.warmup if phase is Phase.MEASURED else 0
        lap, position = divmod(index + offset, len(self._rows))
        row = int(self._rows[position])
        size = max(1, int(self.trace.input_tokens[row]) - (self._overhead or 0))
        pieces = self._pieces(row, size, (phase.value, level, lap), index)
        messages: tuple[tuple[str, str], ...] = ()
        ids: tuple[int, ...] | None = None
        if self._send_ids:
            ids = tuple(itertools.chain.from_iterable(self._vocabulary.ids(*piece) for piece in pieces))
        else:
            messages = (("user", " ".join([self._text(piece) for piece in pieces])),)
        known = self._overhead if self.calibration.exact else None
        return Prompt(
            messages=messages,
            token_ids=ids,
            max_tokens=int(self.trace.output_tokens[row]),
            prompt_id=messages_id(messages) if ids is None else token_ids_id(ids),
            expected_prompt_tokens=None if known is None else size + known,
        )

    def _pieces(self, row: int, size: int, key: tuple[str, int, int], index: int) -> list[_Piece]:
        """Return the parts of a prompt of size tokens: its blocks, and text of its own for what they do not cover."""
        pieces: list[_Piece] = []
        hash_ids = self.trace.hash_ids[self.trace.hash_ends[row] : self.trace.hash_ends[row + 1]]
        for hash_id in hash_ids.tolist():
            if size > 0:
                pieces.append((min(size, BLOCK_TOKENS), STREAM_BLOCK, *key, hash_id))
                size -= BLOCK_TOKENS
        if size > 0:
            pieces.append((size, STREAM_USER, *key[:2], index))
        return pieces

    def _text(self, piece: _Piece) -> str:
        if piece[1] != STREAM_BLOCK:
            return self._vocabulary.text(*piece)
        text = self._blocks.get(piece)
        if text is None:
            if len(self._blocks) >= _MAX_CACHED_BLOCKS:
                self._blocks.clear()
            text = self._blocks[piece] = self._vocabulary.text(*piece)
        return text

    def _known_overhead(self) -> int | None:
        """Return the tokens that the server adds to a prompt; None: not known."""
        if self._send_ids:
            return 0
        if self.endpoint == "completions":
            return self.calibration.text_overhead
        template = self.calibration.template
        return None if template is None else template.overhead(system=False, users=1)
