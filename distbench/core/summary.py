"""
What a workload will ask of a server, told before the load: lengths, distinct share, expected prefix hits, fit (floor F1).

The prompts of the plan's own levels are made and looked at, up to a budget; nothing is estimated from the settings, so that a data set
and a synthetic workload are described by the same measure.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from distbench.core.content import fewest_tokens
from distbench.core.levels import LevelSpec
from distbench.core.prompts import Prompt, Workload
from distbench.core.records import Phase

MAX_REQUESTS = 2_000
MAX_TOKENS = 500_000
DEFAULT_BLOCK_TOKENS = 16
"""Tokens of a KV block where the server does not tell; vLLM's own default."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LengthStats:
    """Mean, smallest and largest of a number of tokens."""

    mean: float
    min: int
    max: int

    @classmethod
    def of(cls, values: Sequence[int]) -> LengthStats:
        """Summarize; values is not empty."""
        return cls(mean=sum(values) / len(values), min=min(values), max=max(values))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LevelSummary:
    """
    The measured requests of one level.

    Attributes:
        level: Its number.
        users_per_request: User messages packed into each request.
        requests: Planned; None where only a duration ends the level.
        sampled: Made and looked at, from the first on.
        prompt_tokens, output_tokens: Per request.
        hit_ratio: Prompt tokens that a server with endless room finds in its prefix cache, block by block, of all prompt tokens:
            requests one after the other, the cache empty at the level's start.
        shared_ratio: The same without blocks: tokens equal to the beginning of an earlier prompt.
        too_long: Sampled requests whose prompt and answer together exceed the context; None where the context is not known.
        refused: Those of them that have no room at all: the prompt fills the context, or the answer alone exceeds it. vLLM refuses
            these; the others' answers it cuts short. None likewise.
    """

    level: int
    users_per_request: int
    requests: int | None
    sampled: int
    prompt_tokens: LengthStats
    output_tokens: LengthStats
    hit_ratio: float
    shared_ratio: float
    too_long: int | None
    refused: int | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSummary:
    """
    A whole run's prompts.

    Attributes:
        levels: One per level, same order; levels without a request are left out.
        distinct_ratio: Distinct prompts of all that were looked at.
        exact: Prompt lengths are what the server will count; else they are lower bounds.
        block_tokens: Block size of the hit ratio.
        max_model_len: Context; None: not known.
        dataset: What was read of a data set, one line; None with synthetic.
        left_out: Requests of the data set that cannot fit the context and are not sent.
    """

    levels: tuple[LevelSummary, ...]
    distinct_ratio: float
    exact: bool
    block_tokens: int
    max_model_len: int | None
    dataset: str | None = None
    left_out: int = 0

    def lines(self) -> list[str]:
        """Return the summary in words, one fact a line; levels that look alike are told once."""
        lines = [f"dataset: {self.dataset}"] if self.dataset is not None else []
        if self.left_out:
            lines.append(
                f"{self.left_out} requests exceed the context of {self.max_model_len} tokens and are left out"
            )
        told: set[int] = set()
        for level in self.levels:
            if level.users_per_request not in told:
                told.add(level.users_per_request)
                lines.append(self._level_line(level, len({one.users_per_request for one in self.levels}) > 1))
        for level in self.levels:
            packing = f"level {level.level} ({level.users_per_request} user messages per request)"
            refused = level.refused or 0
            if refused:
                lines.append(
                    f"{packing}: {refused} of {level.sampled} requests cannot fit the context of {self.max_model_len} tokens"
                )
            if level.too_long is not None and level.too_long > refused:
                lines.append(
                    f"{packing}: {level.too_long - refused} of {level.sampled} answers will be cut short by the context of "
                    f"{self.max_model_len} tokens"
                )
        lines.append(f"distinct prompts: {_percent(self.distinct_ratio)}")
        return lines

    def _level_line(self, level: LevelSummary, several: bool) -> str:
        packing = f"{level.users_per_request} user messages per request: " if several else ""
        bound = "" if self.exact else "at least "
        return (
            f"{packing}prompt tokens {bound}{_range(level.prompt_tokens)}; output tokens {_range(level.output_tokens)}; expected "
            f"prefix hits {_percent(level.hit_ratio)} in blocks of {self.block_tokens} "
            f"(shared beginnings: {_percent(level.shared_ratio)})"
        )


def describe(
    workload: Workload,
    levels: Sequence[LevelSpec],
    *,
    block_tokens: int = DEFAULT_BLOCK_TOKENS,
    max_model_len: int | None = None,
    max_tokens: int = MAX_TOKENS,
) -> WorkloadSummary:
    """
    Look at the prompts of a run's levels.

    Args:
        workload: As build_workload made it.
        levels: The levels that are known beforehand; not empty.
        block_tokens: KV block size of the server.
        max_model_len: Context of the served model; None: not known.
        max_tokens: Prompt tokens to look at, over all levels; at least one request of each level is.
    """
    seen: set[int] = set()
    exact = True
    summaries = []
    sampled = 0
    for spec in levels:
        prompts = list(_sample(workload, spec, len(levels), max_tokens))
        if not prompts:
            continue
        seen.update(prompt.prompt_id for prompt in prompts)
        sampled += len(prompts)
        exact = exact and all(prompt.expected_prompt_tokens is not None for prompt in prompts)
        summaries.append(_summarize(workload, spec, prompts, block_tokens, max_model_len))
    report = getattr(workload, "report", None)
    return WorkloadSummary(
        levels=tuple(summaries),
        distinct_ratio=len(seen) / sampled if sampled else 1.0,
        exact=exact,
        block_tokens=block_tokens,
        max_model_len=max_model_len,
        dataset=None if report is None else str(report),
        left_out=getattr(workload, "num_too_long", 0),
    )


def _sample(workload: Workload, spec: LevelSpec, num_levels: int, max_tokens: int) -> Iterator[Prompt]:
    """Yield the first measured prompts of a level, within its part of the budget."""
    requests = MAX_REQUESTS if spec.requests is None else spec.requests
    budget = max_tokens // num_levels
    for index in range(min(requests, max(1, MAX_REQUESTS // num_levels))):
        prompt = workload.prompt(
            phase=Phase.MEASURED, level=spec.level, index=index, users_per_request=spec.users_per_request
        )
        budget -= fewest_tokens(prompt)
        if budget < 0 and index:
            return
        yield prompt


def _summarize(
    workload: Workload,
    spec: LevelSpec,
    prompts: Sequence[Prompt],
    block_tokens: int,
    max_model_len: int | None,
) -> LevelSummary:
    lengths = [fewest_tokens(prompt) for prompt in prompts]
    total = sum(lengths)
    hits = shared = 0
    blocks, tokens = _PrefixCache(block_tokens), _PrefixCache(1)
    for prompt, length in zip(prompts, lengths, strict=True):
        units = _units(prompt, length, workload)
        hits += blocks.add(units)
        shared += tokens.add(units)
    too_long = refused = None
    if max_model_len is not None:
        asked = [(length, prompt.max_tokens) for length, prompt in zip(lengths, prompts, strict=True)]
        too_long = sum(length + output > max_model_len for length, output in asked)
        refused = sum(length >= max_model_len or output > max_model_len for length, output in asked)
    return LevelSummary(
        level=spec.level,
        users_per_request=spec.users_per_request,
        requests=spec.requests,
        sampled=len(prompts),
        prompt_tokens=LengthStats.of(lengths),
        output_tokens=LengthStats.of([prompt.max_tokens for prompt in prompts]),
        hit_ratio=hits / total,
        shared_ratio=shared / total,
        too_long=too_long,
        refused=refused,
    )


class _PrefixCache:
    """A prefix cache of endless room: keys of chained blocks, as servers keep them."""

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._blocks: set[int] = set()

    def add(self, units: Sequence[object]) -> int:
        """Return how many tokens are found, and keep the rest. The last token is always computed anew."""
        size, found, chain, is_prefix = self._block_tokens, 0, 0, True
        for end in range(size, len(units) + 1, size):
            chain = hash((chain, *units[end - size : end]))
            if is_prefix and chain in self._blocks and end < len(units):
                found += size
            else:
                is_prefix = False
                self._blocks.add(chain)
        return found


def _units(prompt: Prompt, length: int, workload: Workload) -> Sequence[object]:
    """
    Return a prompt as one unit per token, equal where tokens are.

    Words stand for tokens. The template's tokens stand where the template has them, which decides how many blocks are whole.
    """
    if prompt.token_ids is not None:
        return prompt.token_ids
    words = [text.split() for _, text in prompt.messages]
    spare = max(0, length - sum(map(len, words)))
    before, between = _template_places(prompt, spare, workload)
    units: list[object] = [0] * before
    for number, part in enumerate(words):
        units += part
        if number == 0 and between:
            units += [1] * between
    units += [2] * (length - len(units))
    return units


def _template_places(prompt: Prompt, spare: int, workload: Workload) -> tuple[int, int]:
    """Return the tokens before the first content, and those right behind it; of spare tokens that are no content in all."""
    calibration = getattr(workload, "calibration", None)
    if calibration is None or prompt.expected_prompt_tokens is None:
        return 0, 0
    if getattr(workload, "endpoint", "chat") == "completions":
        before = calibration.text_overhead or 0
        return before, (calibration.text_joiner or 0) if len(prompt.messages) > 1 else 0
    if calibration.template is None:
        return 0, 0
    if prompt.messages[0][0] == "system":
        return calibration.template.before_system, calibration.template.after_system
    return min(spare, calibration.template.before_user), 0


def _range(stats: LengthStats) -> str:
    return str(stats.min) if stats.min == stats.max else f"{stats.mean:.0f} ({stats.min} to {stats.max})"


def _percent(ratio: float) -> str:
    return f"{100 * ratio:.1f} %"
