"""
The simulator's tokenizer (floor F3, pure).

Rule: each run of up to 12 word characters is one token, and so is every other character that is not white space; white space
is no token. A token's id is a stable hash of its text. The chat template costs 4 tokens per message (start, role, end, newline) and 2
for the generation prompt (start, role), so the number of prompt tokens of a chat is::

    sum(4 + tokens(content)) + 2

Answers (answers.py) are made of words that are one token each and re-tokenize to the same ids, so that an answer sent back as history hits
the blocks it was computed in, as with a real model. ``/tokenize``, ``usage`` and the prefix cache all use this module.
"""

from __future__ import annotations

import functools
import re
import zlib
from collections.abc import Iterable, Sequence

EOS_ID = 0
_START_ID = 1
_END_ID = 2
_NEWLINE_ID = 3
_NUM_SPECIAL = 16

_TOKEN = re.compile(r"\w{1,12}|[^\w\s]")


@functools.lru_cache(maxsize=65_536)
def token_id(text: str, vocab_size: int) -> int:
    """Return the id of one token, from 16 up to vocab_size."""
    return _NUM_SPECIAL + zlib.crc32(text.encode("utf-8", "surrogatepass")) % (vocab_size - _NUM_SPECIAL)


class Tokenizer:
    """
    Text to ids.

    Args:
        vocab_size: Ids are smaller than this.
    """

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        # The same system part comes with every request: keep a few hundred texts.
        self._encode_cached = functools.lru_cache(maxsize=512)(self._encode)

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the ids of a text; empty for white space."""
        return self._encode_cached(text)

    def encode_chat(
        self, messages: Iterable[tuple[str, str]], *, generation_prompt: bool = True
    ) -> list[int]:
        """Return the ids of a chat, given as (role, content), with the template around it."""
        ids: list[int] = []
        for role, content in messages:
            ids += (_START_ID, token_id(role, self.vocab_size))
            ids += self.encode(content)
            ids += (_END_ID, _NEWLINE_ID)
        if generation_prompt:
            ids += (_START_ID, token_id("assistant", self.vocab_size))
        return ids

    def token_strings(self, ids: Sequence[int]) -> list[str]:
        """Return a text per id, for people: ids are hashes, so only their numbers are known."""
        return [f"<{number}>" for number in ids]

    def _encode(self, text: str) -> tuple[int, ...]:
        vocab_size = self.vocab_size
        return tuple([token_id(word, vocab_size) for word in _TOKEN.findall(text)])
