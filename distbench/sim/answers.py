"""
What the simulator answers: how long, and with which words (floor F3, pure).
"""

from __future__ import annotations

import math
import random
import zlib

from distbench.sim.api import GenerationRequest
from distbench.sim.scheduler import SimRequest
from distbench.sim.settings import SimSettings
from distbench.sim.tokenizer import EOS_ID, token_id

_CONSONANTS = "bdfgklmnprstvz"
_VOWELS = "aeiou"


def _make_words() -> tuple[str, ...]:
    syllables = [c + v for c in _CONSONANTS for v in _VOWELS]
    return tuple(a + b for a in syllables for b in syllables)[:4096]


WORDS = _make_words()
_WORD_MASK = len(WORDS) - 1


class Answer:
    """
    The text of one answer: a fixed pseudo-random walk over the word list.

    Args:
        seed: Chooses the walk; any int.
        vocab_size: As the tokenizer's.
        eos_position: Position of the end-of-sequence token; None: the answer has none.
    """

    __slots__ = ("_eos_position", "_start", "_stride", "_vocab_size")

    def __init__(self, seed: int, vocab_size: int, eos_position: int | None = None) -> None:
        self._start = seed & _WORD_MASK
        self._stride = ((seed >> 12) & _WORD_MASK) | 1
        self._vocab_size = vocab_size
        self._eos_position = eos_position

    def text_at(self, position: int) -> str:
        """Return the text of a token: a word with a space before it, nothing for the end of sequence."""
        if position == self._eos_position:
            return ""
        return " " + WORDS[(self._start + position * self._stride) & _WORD_MASK]

    def token_at(self, position: int) -> int:
        """Return the id of a token."""
        if position == self._eos_position:
            return EOS_ID
        return token_id(WORDS[(self._start + position * self._stride) & _WORD_MASK], self._vocab_size)

    def text(self, start: int, stop: int) -> str:
        """Return the text of the tokens from start up to, not including, stop."""
        return "".join([self.text_at(position) for position in range(start, stop)])


def build_request(parsed: GenerationRequest, name: str, settings: SimSettings) -> tuple[SimRequest, Answer]:
    """
    Decide an answer's length and text.

    Both are functions of the settings' seed and of the request's own seed or, without one, its name. With ignore_eos the answer has
    exactly max_tokens; else its length is geometric with mean ``mean_output_tokens``, and its last token is the end of sequence, which
    counts as a token and has no text, unless max_tokens comes first.

    Args:
        parsed: The request.
        name: X-Request-Id, or what stands for it.
        settings: The server's parameters.
    """
    own = f"seed {parsed.seed}" if parsed.seed is not None else name
    seed = zlib.crc32(f"{settings.seed}/{own}".encode())
    length = parsed.max_tokens
    eos_position = None
    if not parsed.ignore_eos:
        drawn = max(parsed.min_tokens, geometric(seed, settings.mean_output_tokens))
        if drawn <= length:
            length, eos_position = drawn, drawn - 1
    answer = Answer(seed, settings.vocab_size, eos_position)
    request = SimRequest(
        request_id=name,
        tokens=parsed.prompt,
        num_prompt_tokens=len(parsed.prompt),
        num_output_target=length,
        ends_by="length" if eos_position is None else "stop",
        source=answer,
        max_tokens=parsed.max_tokens,
    )
    return request, answer


def geometric(seed: int, mean: float) -> int:
    """Draw a length >= 1 from the geometric distribution with this mean, by inversion."""
    if mean <= 1.0:
        return 1
    return 1 + int(math.log1p(-random.Random(f"length {seed}").random()) / math.log1p(-1.0 / mean))
