"""
JSON as servers really send it (floor F1): lone surrogates, NaN, raw control characters and broken UTF-8 are read, not refused.
"""

from __future__ import annotations

import json
from typing import Any


class NotJson(Exception):
    """The text is no JSON, or is nested or long beyond reason."""


def loads(data: bytes) -> Any:
    """
    Decode a JSON text with every leniency that cannot change its structure.

    Raises:
        NotJson: it cannot be read.
    """
    try:
        return json.loads(data.decode("utf-8-sig", "replace"), strict=False)
    except (ValueError, RecursionError) as error:
        # ValueError covers broken syntax and integers of thousands of digits.
        raise NotJson(str(error)) from None
