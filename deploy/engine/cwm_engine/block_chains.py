"""Drops blocks from vLLM's own cache, with everything that was computed on top of them.

The hash of a block covers all tokens before it. vLLM keeps no way from a block to those that continue it, so the links are kept here,
of every request that had blocks, for as long as vLLM has one of its blocks or of what continues them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

_SPARE_LINKS = 1024
_SPARE = 2
_FORGET_AT = 8


class BlockChains:
    """The scheduler's links between blocks. ``group_tokens``: tokens per block of each KV group, 0 for a group without KV."""

    def __init__(self, group_tokens: Sequence[int]) -> None:
        self._groups = [group for group, tokens in enumerate(group_tokens) if tokens]
        self._pool: Any = None
        self._limit = self._prune_at = 0
        self._parents: dict[bytes, bytes | None] = {}
        self._children: dict[bytes, set[bytes]] = {}
        self._running: dict[str, Any] = {}
        self._is_complete = True

    def bind(self, manager: Any) -> None:
        """Take vLLM's KV cache manager, once it exists."""
        self._pool = manager.block_pool
        self._limit = self._pool.num_gpu_blocks + _SPARE_LINKS
        self._prune_at = _SPARE * self._limit

    def run(self, request: Any) -> None:
        """A request has blocks from now on."""
        self._running[request.request_id] = request
        self._link(request.block_hashes)

    def finish(self, request: Any) -> None:
        """A request ends. What it generated has a hash now, too."""
        if self._running.pop(request.request_id, None) is not None:
            self._link(request.block_hashes)
            if len(self._parents) > self._prune_at:
                self._prune()
                self._prune_at = _SPARE * max(self._limit, len(self._parents))

    def drop(self, request: Any, tokens: int) -> tuple[int, list[str]]:
        """Drop the cached blocks of a request's prompt from the one with token ``tokens`` on, and all that continue them.

        Returns how many blocks they were, and which running requests have computed beyond that token: they go on, and nothing
        that they compute is found by others.
        """
        first = tokens // self._pool.hash_block_size
        hashes = request.block_hashes
        for each in self._running.values():
            self._link(each.block_hashes)
        dropped = set(self._continuing(hashes[first : first + 1])) | set(hashes[first:])
        if not self._is_complete:
            dropped |= self._unlinked()
        numbers = {block.block_id for each in dropped for block in self._cached(each)}
        self._pool.evict_blocks(numbers)
        touched = [
            each
            for each in self._running.values()
            if each.num_computed_tokens > tokens and not dropped.isdisjoint(each.block_hashes[first:])
        ]
        for each in touched:
            beyond = next(at for at, own in enumerate(each.block_hashes) if own in dropped)
            each.block_hashes[beyond:] = [os.urandom(32) for _ in each.block_hashes[beyond:]]
        return len(numbers), [each.request_id for each in touched]

    @property
    def count(self) -> int:
        """The number of links."""
        return len(self._parents)

    def _link(self, hashes: Sequence[bytes]) -> None:
        """Link a chain, from its end to the first link that is known."""
        for at in range(len(hashes) - 1, -1, -1):
            if hashes[at] in self._parents:
                return
            parent = hashes[at - 1] if at else None
            self._parents[hashes[at]] = parent
            if parent is not None:
                self._children.setdefault(parent, set()).add(hashes[at])

    def _continuing(self, roots: Iterable[bytes]) -> Iterator[bytes]:
        """The roots and everything on top of them."""
        waiting = list(roots)
        while waiting:
            each = waiting.pop()
            yield each
            waiting += self._children.get(each, ())

    def _cached(self, block_hash: bytes) -> Iterator[Any]:
        """The blocks that vLLM has under a hash, of every group."""
        table = self._pool.cached_block_hash_to_block._cache  # noqa: SLF001 - it shows one block of several only
        for group in self._groups:
            found = table.get(block_hash + group.to_bytes(4, "big"))
            if found is not None:
                yield from found.values() if isinstance(found, dict) else (found,)

    def _unlinked(self) -> set[bytes]:
        table = self._pool.cached_block_hash_to_block._cache  # noqa: SLF001
        return {key[:-4] for key in table} - self._parents.keys()

    def _prune(self) -> None:
        """Forget what vLLM no longer has, unless something that it has continues it, or a request is using it."""
        used = {own for each in self._running.values() for own in each.block_hashes}
        waiting = [each for each in self._parents if each not in self._children]
        while waiting:
            each = waiting.pop()
            if each in used or any(True for _ in self._cached(each)):
                continue
            parent = self._parents.pop(each)
            if parent is not None:
                siblings = self._children[parent]
                siblings.discard(each)
                if not siblings:
                    del self._children[parent]
                    waiting.append(parent)
        if len(self._parents) > _FORGET_AT * self._limit:
            # Long chains of which vLLM has the ends only. A drop then takes with it what it cannot tell.
            self._parents.clear()
            self._children.clear()
            self._is_complete = False
