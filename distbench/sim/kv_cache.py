"""
Paged KV cache with a prefix cache, as vLLM's V1 engine manages one (floor F3, pure).

What it keeps of vLLM 0.32 for one full-attention group:

- Block 0 is a placeholder that is never handed out, so ``num_blocks - 1`` blocks are usable and the usage counts those.
- A full block is known by a hash chained over all tokens before it; partly filled blocks are never shared.
- A block is registered when the step that fills it is *scheduled*, so another request of the same step may already hit it.
- Freed blocks wait in one queue: blocks that carry no hash go to its front (used again first), registered ones to its end, last
  block of the request first; they stay hit-able until a new allocation takes them from the front (least recently used).
- Two requests that compute the same block at the same time both register it; the first of them serves later hits.

Lengths are tokens unless a name says blocks. Nothing here knows of requests: the scheduler owns the lists of block ids.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

_UNHASHED = 0  # chain_hash never returns it


def chain_hash(parent: int | None, tokens: Sequence[int]) -> int:
    """
    Return the hash of a full block: over its tokens and, through the parent, all tokens before it.

    Args:
        parent: Hash of the block before; None for the first block of a prompt.
        tokens: The token ids of exactly one block.

    Returns:
        A non-zero int; equal chains give equal hashes in every process (ints and tuples of ints are hashed without a salt).
    """
    return hash((parent if parent is not None else -7, *tokens)) or 1


class KvCache:
    """
    The blocks of one engine: who holds them, which are free, which can be hit.

    Args:
        num_blocks: Blocks in all, the placeholder included; > 1.
        block_size: Tokens in a block; > 0.
        prefix_caching: Off: nothing is registered, every freed block goes to the front of the queue.
    """

    __slots__ = (
        "_block_hash",
        "_cached",
        "_free",
        "_references",
        "block_size",
        "num_blocks",
        "prefix_caching",
    )

    def __init__(self, num_blocks: int, block_size: int, *, prefix_caching: bool = True) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.prefix_caching = prefix_caching
        self._references = [0] * num_blocks
        self._block_hash = [_UNHASHED] * num_blocks
        # The free queue; its front is used first. An ordered dict gives removal from the middle (a hit) in constant time.
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_blocks))
        # hash -> the blocks that hold it, oldest first.
        self._cached: dict[int, dict[int, None]] = {}

    @property
    def num_usable_blocks(self) -> int:
        """Blocks that requests can hold."""
        return self.num_blocks - 1

    @property
    def num_free_blocks(self) -> int:
        """Blocks held by no request, registered ones included."""
        return len(self._free)

    @property
    def usage_ratio(self) -> float:
        """Share of the usable blocks held by requests, 0..1; blocks that are only cached count as free."""
        return 1.0 - len(self._free) / self.num_usable_blocks

    def blocks_for(self, num_tokens: int) -> int:
        """Return how many blocks hold this many tokens."""
        return -(-num_tokens // self.block_size)

    def match_prefix(self, hashes: Sequence[int], num_tokens: int) -> list[int]:
        """
        Find the longest cached prefix of a request.

        Args:
            hashes: Chained hashes of its full blocks, in order.
            num_tokens: Its length. At least its last token is computed anew (its logits are wanted), so a prompt that is cached
                whole hits (num_tokens - 1) // block_size blocks.

        Returns:
            Ids of the blocks hit, in order; they are not held yet (``allocate`` takes them).
        """
        hits: list[int] = []
        if not self.prefix_caching:
            return hits
        for block_hash in hashes[: (num_tokens - 1) // self.block_size]:
            holders = self._cached.get(block_hash)
            if holders is None:
                break
            hits.append(next(iter(holders)))
        return hits

    def can_allocate(self, num_tokens: int, held: Sequence[int], hits: Sequence[int] = ()) -> bool:
        """
        Tell whether a request can have slots for its first ``num_tokens`` tokens.

        Args:
            num_tokens: Length that must be covered, counted from the request's start.
            held: Blocks that it holds.
            hits: Cached blocks it would take over; one that waits in the free queue costs a free block like a new one.
        """
        new = max(self.blocks_for(num_tokens) - len(held) - len(hits), 0)
        idle_hits = sum(1 for block in hits if self._references[block] == 0)
        return new + idle_hits <= len(self._free)

    def allocate(self, num_tokens: int, held: list[int], hits: Sequence[int] = ()) -> bool:
        """
        Give a request slots for its first ``num_tokens`` tokens; all of them or none.

        Args:
            num_tokens: As in ``can_allocate``.
            held: Blocks that it holds; hits and new blocks are appended.
            hits: Result of ``match_prefix``; only for a request that holds nothing.

        Returns:
            False, with nothing changed, when there are too few free blocks.
        """
        if not self.can_allocate(num_tokens, held, hits):
            return False
        for block in hits:
            if self._references[block] == 0:
                del self._free[block]
            self._references[block] += 1
        held.extend(hits)
        for _ in range(self.blocks_for(num_tokens) - len(held)):
            block, _none = self._free.popitem(last=False)
            self._forget(block)
            self._references[block] = 1
            held.append(block)
        return True

    def register(self, held: Sequence[int], hashes: Sequence[int], start: int, stop: int) -> None:
        """
        Make full blocks hit-able.

        Args:
            held: Blocks of the request.
            hashes: Its chained hashes; at least ``stop`` of them.
            start: First block, by position in the request, that was not registered before.
            stop: One past the last full block.
        """
        if not self.prefix_caching:
            return
        for position in range(start, stop):
            block, block_hash = held[position], hashes[position]
            if self._block_hash[block] == _UNHASHED:
                self._block_hash[block] = block_hash
                self._cached.setdefault(block_hash, {})[block] = None

    def free(self, held: Iterable[int]) -> None:
        """Give up the blocks of a request (given in its order); shared ones stay with their other holders."""
        unregistered: list[int] = []
        for block in reversed(list(held)):
            self._references[block] -= 1
            if self._references[block] == 0:
                if self._block_hash[block] == _UNHASHED:
                    unregistered.append(block)
                else:
                    self._free[block] = None
        for block in reversed(unregistered):
            self._free[block] = None
            self._free.move_to_end(block, last=False)

    def num_references(self, block: int) -> int:
        """Return how many requests hold a block."""
        return self._references[block]

    def num_cached_blocks(self) -> int:
        """Return how many blocks can be hit, held or not."""
        return sum(len(holders) for holders in self._cached.values())

    def free_order(self) -> tuple[int, ...]:
        """Return the free queue, the block used next first."""
        return tuple(self._free)

    def _forget(self, block: int) -> None:
        """Take a block's content out of the prefix cache, because new tokens go into it."""
        block_hash = self._block_hash[block]
        if block_hash == _UNHASHED:
            return
        self._block_hash[block] = _UNHASHED
        holders = self._cached[block_hash]
        del holders[block]
        if not holders:
            del self._cached[block_hash]
