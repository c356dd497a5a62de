"""
What a tokenizer makes of our words, measured once on the driver and carried to every client (floor F1).

Exact prompt lengths need no tokenizer on the clients: a vocabulary of words that are one token each, in every position, makes a text
of n words n tokens long by construction. What the chat template adds is measured from the ids of a few chats. The tokenizer is behind a
Protocol; asking a server for it, or loading a local one, is done in experiment/.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Protocol

from distbench.core.draws import STREAM_CALIBRATION, draw_u16
from distbench.core.prompts import Prompt
from distbench.core.words import WORDS
from distbench.errors import PlanError

MIN_WORDS = 64
"""Fewer one-token words than this make no usable vocabulary: prompts would repeat each other's beginnings."""

_CHUNK = 128
_SEPARATORS = ("\n", "!", ",", ";", "|")
_SAMPLE_SIZES = (1, 2, 17, 64, 250)
_COMPLETION_JOINER = "\n\n"


class TokenCounter(Protocol):
    """A tokenizer, wherever it lives: a server's /tokenize, or a local one."""

    def encode_text(self, text: str) -> Sequence[int]:
        """Return the ids of a completions prompt, with the special tokens that the server adds to one."""
        ...

    def encode_chat(self, messages: Sequence[tuple[str, str]]) -> Sequence[int] | None:
        """Return the ids of a chat of (role, content), template and generation prompt included; None: no template is known."""
        ...


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ChatTemplate:
    """
    Tokens that a chat template puts around the contents.

    Attributes:
        before_system: Before the system content.
        after_system: Between the system content and the first user content.
        between_users: Between two user contents.
        after_users: Behind the last user content, generation prompt included.
        before_user: Before the first user content where there is no system message (a default one may be in it).
    """

    before_system: int
    after_system: int
    between_users: int
    after_users: int
    before_user: int

    def overhead(self, *, system: bool, users: int) -> int:
        """Return all template tokens of a chat with so many user messages."""
        return self.shared(system=system) + self.between_users * (users - 1) + self.after_users

    def shared(self, *, system: bool) -> int:
        """Return the template tokens before the first user content: with the system content they are the common prefix."""
        return self.before_system + self.after_system if system else self.before_user


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """
    A vocabulary and what is known of its lengths.

    Attributes:
        words: What texts are made of. Empty where only ids are known.
        word_ids: Id of each word with a space before it, same order; or ids to use without words. None: not known.
        exact: Each word is one token in every position.
        template: Tokens of the chat template; None: not known.
        text_overhead: Special tokens that a completions prompt gets; None: not known.
        text_joiner: Tokens of the blank line between two parts of a completions prompt; None: not known.
        send_ids: Send prompts of /completions as token ids.
        source: Where it was measured, for people; "" for the built-in words.
        max_deviation: Largest |tokens - expected| over the samples that were checked; None: none was.
        samples: How many were checked.
    """

    words: tuple[str, ...] = WORDS
    word_ids: tuple[int, ...] | range | None = None
    exact: bool = False
    template: ChatTemplate | None = None
    text_overhead: int | None = None
    text_joiner: int | None = None
    send_ids: bool = False
    source: str = ""
    max_deviation: int | None = None
    samples: int = 0

    @classmethod
    def for_token_ids(cls, vocab_size: int) -> Calibration:
        """
        Make a vocabulary of bare ids, for prompts of /completions; their length is exact with any tokenizer.

        Ids near both ends are left out: bytes and special tokens are found there.

        Raises:
            PlanError: the vocabulary is too small for that.
        """
        low, high = min(1000, vocab_size // 8), vocab_size - max(1, vocab_size // 16)
        if high - low < MIN_WORDS:
            raise PlanError(f"a vocabulary of {vocab_size} ids is too small for prompts of token ids")
        return cls(words=(), word_ids=range(low, high), exact=True, text_overhead=0, send_ids=True)


def calibrate(counter: TokenCounter, *, source: str, words: Sequence[str] = WORDS) -> Calibration:
    """
    Measure a tokenizer; tens of calls of the counter, none longer than a few hundred tokens.

    Args:
        counter: The tokenizer.
        source: For people, such as "server's /tokenize".
        words: Candidates.

    Returns:
        With exact False and the built-in words where the tokenizer has too few one-token words.
    """
    ids_of = _one_token_words(counter, words)
    text_overhead = _text_overhead(counter)
    if len(ids_of) < MIN_WORDS:
        return Calibration(text_overhead=text_overhead, source=source)
    kept = tuple(ids_of)
    joined = counter.encode_text(_COMPLETION_JOINER.join(kept[:2]))
    measured = Calibration(
        words=kept,
        word_ids=tuple(ids_of.values()),
        exact=True,
        template=_template(counter, kept),
        text_overhead=text_overhead,
        text_joiner=None if text_overhead is None else len(joined) - text_overhead - 2,
        source=source,
    )
    deviation, samples = _check_samples(counter, measured)
    return dataclasses.replace(measured, exact=deviation == 0, max_deviation=deviation, samples=samples)


def deviation_of(counter: TokenCounter, prompts: Iterable[Prompt], *, chat: bool) -> tuple[int | None, int]:
    """
    Count real prompts and compare with what the workload expects of them.

    Returns:
        (largest |tokens - expected|, number of prompts compared); (None, 0) where no prompt can be.
    """
    deviations = []
    for prompt in prompts:
        if prompt.expected_prompt_tokens is None or prompt.token_ids is not None:
            continue
        if chat:
            ids = counter.encode_chat(prompt.messages)
        else:
            ids = counter.encode_text(_COMPLETION_JOINER.join(content for _, content in prompt.messages))
        if ids is not None:
            deviations.append(abs(len(ids) - prompt.expected_prompt_tokens))
    return (max(deviations) if deviations else None), len(deviations)


def _one_token_words(counter: TokenCounter, words: Sequence[str]) -> dict[str, int]:
    """Return the words that are one token both behind a space and at the start of a text, with their ids behind a space."""
    spaced: dict[str, int] = {}
    bare: set[str] = set()
    for start in range(0, len(words), _CHUNK):
        chunk = words[start : start + _CHUNK]
        for word, group in zip(chunk, _split_ids(counter, [f" {word}" for word in chunk]), strict=True):
            if len(group) == 1:
                spaced[word] = group[0]
        bare.update(
            word for word, group in zip(chunk, _split_ids(counter, chunk), strict=True) if len(group) == 1
        )
    taken: set[int] = set()
    kept: dict[str, int] = {}
    for word, token in spaced.items():
        if word in bare and token not in taken:
            taken.add(token)
            kept[word] = token
    return kept


def _split_ids(counter: TokenCounter, parts: Sequence[str]) -> list[Sequence[int]]:
    """Return the ids of each part, from one call: a separator that is one token of its own stands between the parts."""
    for separator in _SEPARATORS:
        ids = counter.encode_text("a" + separator + "".join(part + separator for part in parts))
        if not ids:
            continue
        groups: list[list[int]] = [[]]
        for token in ids:
            if token == ids[-1]:
                groups.append([])
            else:
                groups[-1].append(token)
        if len(groups) == len(parts) + 2 and all(groups[1:-1]):
            return list(groups[1:-1])
    return [() for _ in parts]


def _text_overhead(counter: TokenCounter) -> int | None:
    """Return the special tokens around a completions prompt, from two texts that share nothing else; None: cannot tell."""
    one, two, both = (counter.encode_text(text) for text in ("the", "house", "the house"))
    overhead = len(one) + len(two) - len(both)
    return overhead if 0 <= overhead < min(len(one), len(two)) else None


def _template(counter: TokenCounter, words: Sequence[str]) -> ChatTemplate | None:
    """Measure the template from chats of known words that differ in one place each."""
    system_a, system_b, user_a, user_b = (" ".join(words[i : i + 4]) for i in (0, 4, 8, 12))
    length = 4
    chats = (
        (("system", system_a), ("user", user_a)),
        (("system", system_b), ("user", user_a)),
        (("system", system_a), ("user", user_b)),
        (("system", system_a), ("user", user_a), ("user", user_b)),
        (("user", user_a),),
        (("user", user_b),),
    )
    encoded = [counter.encode_chat(chat) for chat in chats]
    ids = [chat for chat in encoded if chat is not None]
    if len(ids) < len(chats):
        return None
    before_system = _common_prefix(ids[0], ids[1])
    after_system = _common_prefix(ids[0], ids[2]) - before_system - length
    after_users = len(ids[0]) - before_system - after_system - 2 * length
    before_user = _common_prefix(ids[4], ids[5])
    between_users = len(ids[3]) - len(ids[0]) - length
    if min(after_system, after_users, between_users) < 0 or before_user + length + after_users != len(ids[4]):
        return None
    return ChatTemplate(
        before_system=before_system,
        after_system=after_system,
        between_users=between_users,
        after_users=after_users,
        before_user=before_user,
    )


def _common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))


def _check_samples(counter: TokenCounter, calibration: Calibration) -> tuple[int, int]:
    """Return the largest deviation over sample texts and chats of several lengths, and the number of samples."""
    deviation, samples = 0, 0
    texts = [
        " ".join(
            calibration.words[n % len(calibration.words)] for n in draw_u16(size, 0, STREAM_CALIBRATION, i)
        )
        for i, size in enumerate(_SAMPLE_SIZES)
    ]
    for size, text in zip(_SAMPLE_SIZES, texts, strict=True):
        if calibration.text_overhead is not None:
            deviation = max(deviation, abs(len(counter.encode_text(text)) - size - calibration.text_overhead))
            samples += 1
    if calibration.template is not None:
        for users in (1, 2, 3):
            chat = [("system", texts[2]), *(("user", text) for text in texts[:users])]
            size = _SAMPLE_SIZES[2] + sum(_SAMPLE_SIZES[:users])
            ids = counter.encode_chat(chat) or ()
            expected = size + calibration.template.overhead(system=True, users=users)
            deviation = max(deviation, abs(len(ids) - expected))
            samples += 1
    return deviation, samples
