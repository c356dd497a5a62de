"""
Secrets out of what others say (floor F4): a server may repeat the key it was given in its error, and errors are kept and shown.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from distbench.core.plan_io import MASK, is_secret_header

# Anything shorter would mask ordinary words, and is no secret anyway.
_SHORTEST = 6


class Redaction:
    """
    Masks the secrets of a run.

    Args:
        headers: (name, value) of everything that is sent; the values of secret-looking ones are masked, with and without their
            scheme ("Bearer").
    """

    def __init__(self, headers: Iterable[tuple[str, str]]) -> None:
        found = set()
        for name, value in headers:
            if is_secret_header(name):
                found |= {value, value.rpartition(" ")[2]}
        # The longest first, so that no part of one is left over.
        self._secrets = sorted((text for text in found if len(text) >= _SHORTEST), key=len, reverse=True)

    def __repr__(self) -> str:
        return f"Redaction({len(self._secrets)} secrets)"

    def text(self, text: str) -> str:
        """Return a text without the secrets."""
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        return text

    def table(self, table: pa.Table) -> pa.Table:
        """Return rows of requests without the secrets in error_text; the table itself where there are none."""
        at = table.schema.get_field_index("error_text")
        column = table.column(at)
        if column.null_count == len(column):
            return table
        for secret in self._secrets:
            column = pc.replace_substring(column, secret, MASK)
        return table.set_column(at, table.schema.field(at), column)
