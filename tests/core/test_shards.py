"""Shares are disjoint, whole and even, whatever the numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distbench.core.levels import LevelSpec
from distbench.core.shards import ClientShare, client_share, level_share, split_evenly, split_in_proportion


def spec(**changes: object) -> LevelSpec:
    """Return a closed-loop level of 10 connections, 100 requests and 10 of warm-up."""
    values = {"level": 0, "connections": 10, "requests": 100, "warmup": 10, **changes}
    return LevelSpec(**values)  # type: ignore[arg-type]


def shares(level: LevelSpec, num_clients: int, num_targets: int = 1) -> list[ClientShare]:
    """Return all clients' shares."""
    return [
        level_share(level, position=i, num_clients=num_clients, num_targets=num_targets)
        for i in range(num_clients)
    ]


def test_split_evenly_gives_larger_parts_first() -> None:
    """Parts differ by at most one."""
    assert split_evenly(10, 4) == [3, 3, 2, 2]
    assert split_evenly(2, 4) == [1, 1, 0, 0]


@pytest.mark.parametrize(("total", "parts"), [(1, 0), (-1, 2)])
def test_split_evenly_refuses_nonsense(total: int, parts: int) -> None:
    """No parts, or a negative total."""
    with pytest.raises(ValueError, match="cannot split"):
        split_evenly(total, parts)


def test_split_in_proportion_follows_largest_remainders() -> None:
    """10 over weights 1:1:1 is 4, 3, 3; nothing goes to weight 0, and nothing to nobody."""
    assert split_in_proportion(10, [1, 1, 1]) == [4, 3, 3]
    assert split_in_proportion(7, [2, 0, 1]) == [5, 0, 2]
    assert split_in_proportion(7, [0, 0]) == [0, 0]


def test_client_share_spreads_connections_over_clients_and_targets() -> None:
    """Clients hold blocks; connection c goes to target c mod number of targets."""
    share = client_share(client=1, num_clients=3, num_targets=2, connections=8, requests=80, warmup=8)
    assert share == ClientShare(
        connections=range(3, 6), targets=(1, 0, 1), measured=range(30, 60), warmup=range(3, 6)
    )
    assert share.planned == 33


@pytest.mark.parametrize("client", [-1, 3])
def test_client_share_refuses_a_client_outside_its_range(client: int) -> None:
    """0 <= client < num_clients."""
    with pytest.raises(ValueError, match="outside"):
        client_share(client=client, num_clients=3, num_targets=1, connections=1, requests=1, warmup=0)


@given(
    connections=st.integers(1, 60),
    requests=st.integers(0, 300),
    warmup=st.integers(0, 60),
    num_clients=st.integers(1, 12),
    num_targets=st.integers(1, 5),
    pattern=st.sampled_from(["burst", "constant"]),
)
def test_shares_of_all_clients_are_disjoint_and_whole(
    connections: int, requests: int, warmup: int, num_clients: int, num_targets: int, pattern: str
) -> None:
    """Every connection, request and warm-up request belongs to exactly one client, in closed and open loop."""
    level = spec(connections=connections, requests=requests, warmup=warmup, pattern=pattern)
    all_shares = shares(level, num_clients, num_targets)
    for name, total in (("connections", connections), ("measured", requests), ("warmup", warmup)):
        owned = [index for share in all_shares for index in getattr(share, name)]
        assert sorted(owned) == list(range(total))
    targets = [target for share in all_shares for target in share.targets]
    counts = [targets.count(target) for target in range(num_targets)]
    assert max(counts) - min(counts) <= 1


@given(connections=st.integers(1, 40), num_clients=st.integers(1, 12), warmup=st.integers(0, 30))
def test_a_client_without_connections_gets_no_requests(
    connections: int, num_clients: int, warmup: int
) -> None:
    """A request that nobody can send would never end the level."""
    for pattern in ("burst", "poisson"):
        for requests in (57, None):
            level = spec(connections=connections, requests=requests, warmup=warmup, pattern=pattern)
            for share in shares(level, num_clients):
                if not share.connections:
                    assert (len(share.measured), len(share.warmup)) == (0, 0)


def test_open_loop_deals_slots_in_turn() -> None:
    """Slot k goes to client k mod n; the first slots are the warm-up, so measured indices are shifted by it."""
    first, second = shares(spec(pattern="constant", warmup=3, requests=5), 2)
    assert (list(first.warmup), list(first.measured)) == ([0, 2], [1, 3])
    assert (list(second.warmup), list(second.measured)) == ([1], [0, 2, 4])


def test_a_level_that_only_time_ends_deals_indices_in_turn() -> None:
    """No client needs to know how many others will send; nothing is planned beforehand."""
    first, second = shares(spec(requests=None), 2)
    assert (list(first.measured[:3]), list(second.measured[:3])) == ([0, 2, 4], [1, 3, 5])
    assert (first.planned, second.planned) == (None, None)
    assert (first.warmup, second.warmup) == (range(5), range(5, 10))
