"""
How a level's connections and requests are divided over clients and targets (floor F1).

Every client computes its own share from the same few numbers; nobody hands out requests one by one. Totals are totals: the
shares of all clients are disjoint and their union is the whole, whatever the numbers.

Closed loop: a client's requests are one block, in proportion to its connections, so that all clients end together and the turns of
a conversation stay on one client. Open loop, and levels that only a duration ends: requests are dealt out in turn, so that each
client's part of the schedule spans the whole level.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from distbench.core.levels import LevelSpec

UNBOUNDED = 5 * 10**11
"""End of the index range of a level that no number of requests ends; as far as request ids reach."""


def split_evenly(total: int, parts: int) -> list[int]:
    """
    Divide total into parts that differ by at most one, larger ones first.

    Raises:
        ValueError: parts < 1 or total < 0.
    """
    if parts < 1 or total < 0:
        raise ValueError(f"cannot split {total} into {parts} parts")
    base, extra = divmod(total, parts)
    return [base + 1 if i < extra else base for i in range(parts)]


def split_in_proportion(total: int, weights: Sequence[int]) -> list[int]:
    """
    Divide total in proportion to weights, exactly; a weight of 0 gets 0.

    Returns:
        Shape (len(weights),); the sum is total where any weight is positive, else all zeros.

    Source: largest-remainder method; ties go to the earlier part.
    """
    weight_sum = sum(weights)
    if weight_sum <= 0:
        return [0] * len(weights)
    floors = [total * w // weight_sum for w in weights]
    remainders = [total * w % weight_sum for w in weights]
    short = total - sum(floors)
    order = sorted(range(len(weights)), key=lambda i: (-remainders[i], i))
    for i in order[:short]:
        floors[i] += 1
    return floors


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ClientShare:
    """
    One client's part of a level.

    Attributes:
        connections: Indices over all clients, contiguous.
        targets: Index of the target of each connection, same order; connection c goes to target c mod number of targets.
        measured: Indices of measured requests: a block, or every n-th.
        warmup: Indices of warm-up requests, likewise.
        open_ended: No number of requests ends the level; measured then has no meaningful end, and nothing of it is planned.
    """

    connections: range
    targets: tuple[int, ...]
    measured: range
    warmup: range
    open_ended: bool = False

    @property
    def planned(self) -> int | None:
        """Rows that the client owes, warm-up included; None where only the duration ends the level."""
        return None if self.open_ended else len(self.measured) + len(self.warmup)


def level_share(spec: LevelSpec, *, position: int, num_clients: int, num_targets: int) -> ClientShare:
    """
    Compute the share of one client in a level.

    Open loop: slot k of the schedule (the first spec.warmup slots are the warm-up) goes to client k mod num_clients; a client
    without a connection gets none, so only the first spec.connections clients are dealt to.

    Args:
        spec: The level.
        position: The client's place among those that take part, 0 <= position < num_clients.
        num_clients: Clients that take part.
        num_targets: Base URLs of the run.

    Raises:
        ValueError: position is outside its range, or a number is negative.
    """
    share = client_share(
        client=position,
        num_clients=num_clients,
        num_targets=num_targets,
        connections=spec.connections,
        requests=spec.requests or 0,
        warmup=spec.warmup,
    )
    open_ended = spec.requests is None
    if not (open_ended or spec.is_open_loop):
        return share
    dealt = max(1, min(num_clients, spec.connections))
    if position >= dealt:
        return dataclasses.replace(share, measured=range(0), warmup=range(0), open_ended=open_ended)
    end = UNBOUNDED if spec.requests is None else spec.requests
    if spec.is_open_loop:
        return dataclasses.replace(
            share,
            measured=range((position - spec.warmup) % dealt, end, dealt),
            warmup=range(position, spec.warmup, dealt),
            open_ended=open_ended,
        )
    return dataclasses.replace(share, measured=range(position, end, dealt), open_ended=True)


def client_share(
    *, client: int, num_clients: int, num_targets: int, connections: int, requests: int, warmup: int
) -> ClientShare:
    """
    Compute the share of one client.

    Connections are spread evenly over clients (blocks) and targets (round robin); requests follow the connections in
    proportion, so that all clients have the same work per connection and end together.

    Args:
        client: 0 <= client < num_clients.
        num_clients: Clients of the level.
        num_targets: Base URLs of the run.
        connections: TOTAL of the level.
        requests: TOTAL measured requests of the level.
        warmup: TOTAL warm-up requests of the level.

    Raises:
        ValueError: client is outside its range, or a number is negative.
    """
    if not 0 <= client < num_clients:
        raise ValueError(f"client {client} is outside 0..{num_clients - 1}")
    per_client = split_evenly(connections, num_clients)
    first = sum(per_client[:client])
    block = range(first, first + per_client[client])
    return ClientShare(
        connections=block,
        targets=tuple(c % num_targets for c in block),
        measured=_block(split_in_proportion(requests, per_client), client),
        warmup=_block(split_in_proportion(warmup, per_client), client),
    )


def _block(shares: Sequence[int], client: int) -> range:
    first = sum(shares[:client])
    return range(first, first + shares[client])
