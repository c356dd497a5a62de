"""
The two implementations of a connection by their plan words (floor F2).
"""

from __future__ import annotations

from typing import Literal

from distbench.wire.base import Connection, TemplateOf, WireTarget
from distbench.wire.deadlines import TokenSeen
from distbench.wire.fast import FastConnection


def open_connection(
    kind: Literal["fast", "httpx"],
    target: WireTarget,
    token_seen: TokenSeen | None = None,
    template_of: TemplateOf | None = None,
) -> Connection:
    """
    Return a connection to a target; nothing is opened before its connect() or first exchange().

    Args:
        kind: "fast" (raw socket, kernel stamps) or "httpx" (the reference).
        target: Where to, and the limits.
        token_seen: Asked when a limit has been reached whether a token is among the body pieces; None: any byte is one.
        template_of: Finds what the chunks of an answer have in common, so that one of them is kept; None: all are. The reference keeps all.

    Raises:
        PlanError: the URL or a header cannot be used.
    """
    if kind == "fast":
        return FastConnection(target, token_seen, template_of)
    # Imported where it is asked for: the client library would cost the fast client its start-up time and memory.
    from distbench.wire.httpx_ref import HttpxConnection

    return HttpxConnection(target, token_seen)
