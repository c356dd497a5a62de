"""What prompts have in common whatever they are made of: their identity, and a bound of their length (floor F1)."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence

from distbench.core.prompts import Prompt

Messages = tuple[tuple[str, str], ...]

_ID_MASK = 2**63 - 1
_MAX_BYTES_PER_TOKEN = 8


def messages_id(messages: Iterable[tuple[str, str]]) -> int:
    """Return the identity of a text prompt: equal for equal (role, content) pairs on every machine; fits int64, not negative."""
    # No text holds the separators unescaped by chance of position: roles are single words, and lengths frame the contents.
    text = "".join([f"{role} {len(content)} {content}" for role, content in messages])
    return _digest(text.encode("utf-8", "surrogatepass"))


def token_ids_id(token_ids: Sequence[int]) -> int:
    """Return the identity of a prompt of token ids, like messages_id; apart from all texts."""
    return _digest(b"\0" + struct.pack(f"<{len(token_ids)}q", *token_ids))


def fewest_tokens(prompt: Prompt) -> int:
    """
    Return how many tokens a prompt has at least: exact where the workload knows, else what no usual tokenizer goes below.

    A word is at least one token, and a token rarely more than eight bytes. Meant to tell beforehand what can never fit a context.
    """
    if prompt.expected_prompt_tokens is not None:
        return prompt.expected_prompt_tokens
    if prompt.token_ids is not None:
        return len(prompt.token_ids)
    return sum(fewest_tokens_of_text(content) for _, content in prompt.messages)


def fewest_tokens_of_text(text: str) -> int:
    """Return the lower bound of a text's tokens; see fewest_tokens."""
    return max(len(text.split()), len(text.encode("utf-8", "surrogatepass")) // _MAX_BYTES_PER_TOKEN)


def _digest(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little") & _ID_MASK
