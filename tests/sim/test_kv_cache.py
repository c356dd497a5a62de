"""The paged KV cache, by hand-worked examples."""

from __future__ import annotations

import pytest

from distbench.sim.kv_cache import KvCache, chain_hash


def hashes_of(tokens: list[int], size: int) -> list[int]:
    """Return the chained hashes of the full blocks."""
    result: list[int] = []
    for start in range(0, len(tokens) - size + 1, size):
        result.append(chain_hash(result[-1] if result else None, tokens[start : start + size]))
    return result


def test_usage_counts_usable_blocks_only() -> None:
    """One block is a placeholder: 62 of 63 usable blocks in use read 0.98412698, as a real server with 64 blocks does."""
    cache = KvCache(64, 32)
    held: list[int] = []
    assert cache.num_usable_blocks == 63
    assert cache.usage_ratio == 0.0
    assert cache.allocate(62 * 32, held)
    assert cache.usage_ratio == pytest.approx(0.9841269841269842)


def test_allocate_is_all_or_nothing() -> None:
    """A request that needs more blocks than are free gets none and changes nothing."""
    cache = KvCache(4, 4)
    held: list[int] = []
    assert not cache.allocate(13, held)
    assert held == []
    assert cache.free_order() == (1, 2, 3)
    assert cache.allocate(12, held)
    assert held == [1, 2, 3]


def test_partly_filled_block_is_extended_before_a_new_one_is_taken() -> None:
    """Slots for 5 tokens are two blocks of 4; the 8th token still needs none, the 9th does."""
    cache = KvCache(8, 4)
    held: list[int] = []
    cache.allocate(5, held)
    assert held == [1, 2]
    cache.allocate(8, held)
    assert held == [1, 2]
    cache.allocate(9, held)
    assert held == [1, 2, 3]


def test_hits_are_capped_so_that_the_last_token_is_computed() -> None:
    """A prompt of exactly two cached blocks hits one: (8 - 1) // 4; with one token more it hits both."""
    cache = KvCache(8, 4)
    tokens = list(range(100, 108))
    hashes = hashes_of(tokens, 4)
    held: list[int] = []
    cache.allocate(8, held)
    cache.register(held, hashes, 0, 2)
    assert cache.match_prefix(hashes, 8) == [1]
    assert cache.match_prefix(hashes, 9) == [1, 2]


def test_match_stops_at_the_first_miss() -> None:
    """A chain is hit from its start only: another first block means no hit, even where the second block's tokens agree."""
    cache = KvCache(8, 4)
    held: list[int] = []
    cache.allocate(8, held)
    cache.register(held, hashes_of([1, 2, 3, 4, 5, 6, 7, 8], 4), 0, 2)
    assert cache.match_prefix(hashes_of([9, 9, 9, 9, 5, 6, 7, 8, 0], 4), 9) == []
    assert cache.match_prefix(hashes_of([1, 2, 3, 4, 9, 9, 9, 9, 0], 4), 9) == [1]


def test_freed_cached_blocks_wait_at_the_end_tail_first() -> None:
    """Registered blocks go to the end of the queue, the request's last block first, so that a prefix outlives its tail."""
    cache = KvCache(6, 4)
    held: list[int] = []
    cache.allocate(12, held)
    cache.register(held, hashes_of(list(range(12)), 4), 0, 3)
    cache.free(held)
    assert cache.free_order() == (4, 5, 3, 2, 1)


def test_freed_blocks_without_hash_are_used_again_first() -> None:
    """A partly filled block cannot be hit: it goes to the front, before blocks that were never used."""
    cache = KvCache(6, 4)
    held: list[int] = []
    cache.allocate(10, held)
    cache.register(held, hashes_of(list(range(10)), 4), 0, 2)
    cache.free(held)
    assert cache.free_order() == (3, 4, 5, 2, 1)


def test_without_prefix_caching_the_last_freed_is_used_first() -> None:
    """No hashes: all blocks go to the front, the request's last block foremost."""
    cache = KvCache(6, 4, prefix_caching=False)
    held: list[int] = []
    cache.allocate(12, held)
    cache.register(held, hashes_of(list(range(12)), 4), 0, 3)
    cache.free(held)
    assert cache.free_order() == (3, 2, 1, 4, 5)
    assert cache.num_cached_blocks() == 0


def test_eviction_takes_the_least_recently_freed_and_forgets_it() -> None:
    """Of two finished prompts the older loses its tail first; its first block can still be hit."""
    cache = KvCache(5, 4)
    old, new = hashes_of([1] * 8, 4), hashes_of([2] * 8, 4)
    for hashes in (old, new):
        held: list[int] = []
        cache.allocate(8, held)
        cache.register(held, hashes, 0, 2)
        cache.free(held)
    other: list[int] = []
    cache.allocate(4, other)
    assert other == [2]
    assert cache.match_prefix(old, 99) == [1]
    assert cache.match_prefix(new, 99) == [3, 4]


def test_hit_takes_idle_blocks_out_of_the_queue_and_shares_held_ones() -> None:
    """A second request with the same prefix costs the idle hits and its own tail; both hold the block afterwards."""
    cache = KvCache(5, 4)
    hashes = hashes_of([1] * 4, 4)
    first: list[int] = []
    cache.allocate(4, first)
    cache.register(first, hashes, 0, 1)
    second: list[int] = []
    assert cache.allocate(8, second, cache.match_prefix(hashes, 8))
    assert second == [1, 2]
    assert cache.num_references(1) == 2
    cache.free(first)
    assert cache.num_references(1) == 1
    assert cache.free_order() == (3, 4)


def test_idle_hits_count_against_the_free_blocks() -> None:
    """An idle hit is in the free queue: 1 idle hit and 2 new blocks do not fit into 2 free ones."""
    cache = KvCache(3, 4)
    hashes = hashes_of([1] * 4, 4)
    first: list[int] = []
    cache.allocate(4, first)
    cache.register(first, hashes, 0, 1)
    cache.free(first)
    hits = cache.match_prefix(hashes, 12)
    assert hits == [1]
    assert not cache.can_allocate(12, (), hits)
    assert cache.can_allocate(8, (), hits)


def test_same_block_computed_twice_is_served_from_the_first() -> None:
    """Two requests of one step compute the same block; the older copy serves hits, and the other when that is gone."""
    cache = KvCache(4, 4)
    hashes = hashes_of([1] * 4, 4)
    copies: list[list[int]] = [[], []]
    for held in copies:
        cache.allocate(4, held)
        cache.register(held, hashes, 0, 1)
    assert cache.num_cached_blocks() == 2
    assert cache.match_prefix(hashes, 99) == [1]
    cache.free(copies[0])
    other: list[int] = []
    cache.allocate(8, other)
    assert other == [3, 1]
    assert cache.match_prefix(hashes, 99) == [2]


def test_chain_hash_depends_on_all_tokens_before() -> None:
    """Equal tokens behind different parents are different blocks; the hash is the same in every process (literal value)."""
    first = chain_hash(None, [1, 2])
    assert chain_hash(first, [3, 4]) != chain_hash(None, [3, 4])
    assert chain_hash(None, [1, 2]) == first
    assert first != 0
