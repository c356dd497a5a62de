"""The connections of a client, as its setup wants them (floor F3)."""

from __future__ import annotations

from typing import Literal, cast

from distbench.client.messages import ClientSetup
from distbench.wire.base import Connection, TemplateOf
from distbench.wire.deadlines import TokenSeen
from distbench.wire.factory import open_connection


def connection_to(
    setup: ClientSetup,
    target: int,
    token_seen: TokenSeen | None = None,
    template_of: TemplateOf | None = None,
) -> Connection:
    """
    Return a new connection, not yet open.

    Args:
        setup: Of the client.
        target: Index of the target.
        token_seen: As for open_connection.
        template_of: Likewise.
    """
    kind = cast(Literal["fast", "httpx"], setup.http_client)
    return open_connection(kind, setup.targets[target], token_seen, template_of)
