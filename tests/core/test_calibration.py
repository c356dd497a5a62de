"""Tests of distbench.core.calibration, against the simulator's tokenizer and hostile ones."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from distbench.core.calibration import Calibration, ChatTemplate, calibrate, deviation_of
from distbench.core.content import messages_id
from distbench.core.lengths import LengthSpec
from distbench.core.plan import PromptPlan
from distbench.core.prompts import Prompt
from distbench.core.records import Phase
from distbench.core.synthetic import SyntheticWorkload
from distbench.core.words import WORDS
from distbench.errors import PlanError
from distbench.sim.tokenizer import Tokenizer

_BOS, _NEWLINE, _SPACE = 1, 2, 3


class SimCounter:
    """The simulator's tokenizer: 4 tokens around each message, 2 of generation prompt, white space is nothing."""

    def __init__(self) -> None:
        self._tokenizer = Tokenizer(1_000_000)

    def encode_text(self, text: str) -> Sequence[int]:
        return self._tokenizer.encode(text)

    def encode_chat(self, messages: Sequence[tuple[str, str]]) -> Sequence[int] | None:
        return self._tokenizer.encode_chat(messages)


class ByteCounter:
    """
    A made-up tokenizer in the manner of byte-pair ones: words with the space before them, new lines apart, BOS in front.

    Words of known length classes are split: those with a "z" at the start of a text, those with a "q" everywhere.
    """

    def __init__(self, *, template: bool = True) -> None:
        self._has_template = template
        self._ids: dict[str, int] = {}

    def encode_text(self, text: str) -> Sequence[int]:
        return [_BOS, *self._encode(text)]

    def encode_chat(self, messages: Sequence[tuple[str, str]]) -> Sequence[int] | None:
        if not self._has_template:
            return None
        ids = [_BOS]
        if messages[0][0] != "system":
            ids += self._encode("default system text\n")
        for role, content in messages:
            ids += [self._id(f"<{role}>"), _NEWLINE, *self._encode(content), self._id("<end>"), _NEWLINE]
        return [*ids, self._id("<assistant>")]

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for number, line in enumerate(text.split("\n")):
            if number:
                ids.append(_NEWLINE)
            for place, word in enumerate(line.split(" ")):
                if place and not word:
                    ids.append(_SPACE)
                for piece in self._pieces(word, place > 0):
                    ids.append(self._id(piece))
        return ids

    def _pieces(self, word: str, spaced: bool) -> list[str]:
        if not word:
            return []
        text = f" {word}" if spaced else word
        split = "q" in word or ("z" in word and not spaced)
        return [text[:2], text[2:]] if split else [text]

    def _id(self, piece: str) -> int:
        return self._ids.setdefault(piece, len(self._ids) + 10)


def test_the_template_of_the_simulator_is_measured() -> None:
    """By its rule: start and role before a content, end and newline behind it, start and role of the answer."""
    calibration = calibrate(SimCounter(), source="sim")
    assert calibration.template == ChatTemplate(
        before_system=2, after_system=4, between_users=4, after_users=4, before_user=2
    )
    assert calibration.template.overhead(system=True, users=1) == 10
    assert calibration.template.overhead(system=True, users=3) == 18
    assert calibration.template.overhead(system=False, users=1) == 6
    assert (calibration.text_overhead, calibration.text_joiner) == (0, 0)
    assert calibration.exact
    assert calibration.max_deviation == 0
    assert calibration.samples == 8
    assert len(calibration.words) > 1500


def test_words_of_several_tokens_are_left_out() -> None:
    """Only words that are one token behind a space and at a text's start remain, with their ids behind a space."""
    counter = ByteCounter()
    calibration = calibrate(counter, source="made up")
    assert calibration.exact
    assert calibration.words == tuple(word for word in WORDS if "q" not in word and "z" not in word)
    assert isinstance(calibration.word_ids, tuple)
    assert list(counter.encode_text("a " + calibration.words[5]))[2:] == [calibration.word_ids[5]]
    # BOS; "default", " system", " text", newline; role, newline | end, newline | ...
    assert calibration.template == ChatTemplate(
        before_system=3, after_system=4, between_users=4, after_users=3, before_user=7
    )
    assert (calibration.text_overhead, calibration.text_joiner) == (1, 2)


@pytest.mark.parametrize("users", [1, 3])
@pytest.mark.parametrize("system", [0, 20])
@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_prompts_are_as_long_as_expected(endpoint: str, system: int, users: int) -> None:
    """Whatever is packed: the tokenizer counts exactly what the workload said, content and template."""
    counter = ByteCounter()
    workload = SyntheticWorkload(
        PromptPlan(system_tokens=LengthSpec("fixed", system), user_tokens=LengthSpec.parse("uniform:1:200")),
        calibration=calibrate(counter, source="made up"),
        endpoint=endpoint,
    )
    prompts = [
        workload.prompt(phase=Phase.MEASURED, level=1, index=index, users_per_request=users)
        for index in range(20)
    ]
    assert all(prompt.expected_prompt_tokens is not None for prompt in prompts)
    assert deviation_of(counter, prompts, chat=endpoint == "chat") == (0, 20)


def test_one_content_token_and_bos_are_two_tokens() -> None:
    """C89: input length 1 with a tokenizer that adds BOS: one content token, total 2 as the server says."""
    counter = ByteCounter()
    workload = SyntheticWorkload(
        PromptPlan(system_tokens=LengthSpec("fixed", 0), user_tokens=LengthSpec("fixed", 1)),
        calibration=calibrate(counter, source="made up"),
        endpoint="completions",
    )
    prompt = workload.prompt(phase=Phase.MEASURED, level=0, index=0, users_per_request=1)
    assert len(prompt.messages[0][1].split()) == 1
    assert prompt.expected_prompt_tokens == 2
    assert len(counter.encode_text(prompt.messages[0][1])) == 2


def test_without_a_template_chats_are_approximate_and_texts_exact() -> None:
    """A local tokenizer without a template knows contents only: chat prompts then have no expected length."""
    calibration = calibrate(ByteCounter(template=False), source="made up")
    assert calibration.template is None
    assert calibration.exact
    for endpoint, known in (("chat", False), ("completions", True)):
        workload = SyntheticWorkload(PromptPlan(), calibration=calibration, endpoint=endpoint)
        prompt = workload.prompt(phase=Phase.MEASURED, level=0, index=0, users_per_request=1)
        assert (prompt.expected_prompt_tokens is not None) is known


class CharacterCounter(ByteCounter):
    """One token a character: no word of ours is one token."""

    def encode_text(self, text: str) -> Sequence[int]:
        return [ord(character) for character in text]


class DriftingCounter(SimCounter):
    """Adds a token to texts of more than 60 words, as a tokenizer that merges or splits across words would."""

    def encode_text(self, text: str) -> Sequence[int]:
        ids = list(super().encode_text(text))
        return ids + [5] * (len(text) > 60 and "!" not in text and "\n" not in text)


def test_a_tokenizer_without_our_words_gives_approximate_lengths() -> None:
    """Too few one-token words: the built-in ones, not exact, no expected length."""
    calibration = calibrate(CharacterCounter(), source="characters")
    assert not calibration.exact
    assert calibration.words == WORDS
    workload = SyntheticWorkload(PromptPlan(), calibration=calibration)
    prompt = workload.prompt(phase=Phase.MEASURED, level=0, index=0, users_per_request=1)
    assert prompt.expected_prompt_tokens is None


def test_a_deviation_of_the_samples_is_told() -> None:
    """Where the check on whole texts fails, lengths are approximate and the deviation is known."""
    calibration = calibrate(DriftingCounter(), source="drifting")
    assert (calibration.exact, calibration.max_deviation) == (False, 1)


def test_deviation_of_nothing_is_none() -> None:
    """None is not zero: prompts without an expected length, or of ids, are not compared."""
    prompt = Prompt(messages=(("user", "a"),), max_tokens=1, prompt_id=messages_id([("user", "a")]))
    assert deviation_of(SimCounter(), [prompt], chat=True) == (None, 0)


def test_token_ids_stay_clear_of_both_ends_of_the_vocabulary() -> None:
    """Bytes and special tokens live there: of 32,000 ids 1,000 to 29,999 are used; a tiny vocabulary is refused."""
    calibration = Calibration.for_token_ids(32_000)
    assert calibration.word_ids == range(1000, 30_000)
    workload = SyntheticWorkload(PromptPlan(), calibration=calibration, endpoint="completions")
    prompt = workload.prompt(phase=Phase.MEASURED, level=0, index=0, users_per_request=2)
    assert prompt.token_ids is not None
    assert len(prompt.token_ids) == prompt.expected_prompt_tokens == 128 * 3
    assert all(1000 <= token < 30_000 for token in prompt.token_ids)
    assert prompt.messages == ()
    with pytest.raises(PlanError, match="too small"):
        Calibration.for_token_ids(60)
