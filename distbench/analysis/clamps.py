"""
Answers that the context cut, and prompts that it refused (floor F3, pure).

A server clamps a long answer without a word: it ends by length before max_tokens. The user messages of such a request were answered in
part only, and count by that part (rates.answered_share).
"""

from __future__ import annotations

import pyarrow as pa

from distbench.analysis.arrays import is_word, measured, numbers
from distbench.analysis.level_row import LevelRow
from distbench.analysis.rates import answered_share

CLAMP_COLUMNS = (
    "phase",
    "outcome",
    "error_kind",
    "finish_reason",
    "completion_tokens",
    "max_tokens",
    "user_messages",
)


def clamp_columns(rows: pa.Table) -> LevelRow:
    """
    Return the columns of levels.parquet that tell of the context.

    Args:
        rows: Rows of one level, columns CLAMP_COLUMNS; measured ones count.

    Returns:
        requests_clamped, requests_overflowed, and answered_ratio: of the user messages of the answered requests, the share that the
        answers hold; None without an answer.
    """
    of_level = measured(rows)
    ok = of_level & is_word(rows, "outcome", "ok")
    share, messages = answered_share(rows)[ok], numbers(rows, "user_messages")[ok]
    asked = float(messages.sum())
    return {
        "requests_clamped": int((share < 1).sum()),
        "requests_overflowed": int((of_level & is_word(rows, "error_kind", "context_overflow")).sum()),
        "answered_ratio": float((share * messages).sum()) / asked if asked > 0 else None,
    }
