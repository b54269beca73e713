"""Which blocks of vLLM's own cache rest on KV that was loaded: it came from LMCache itself, or was computed on top of such.

A block is known by its number and the hash that it had when it was marked: one that was evicted and used again has another hash,
or none. So no group has more marks than blocks. A mark says where the load ended that the block rests on: what was computed on top of a load
that is proven is proven, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class _Resting:
    """A request that rests on loads, and which blocks of each group are looked at already."""

    tokens: int
    since: int
    looked: dict[int, int] = field(default_factory=dict)


class LoadedBlocks:
    """The scheduler's marks. ``group_tokens``: tokens per block of each KV group, 0 for a group without KV."""

    def __init__(self, group_tokens: Sequence[int]) -> None:
        self._group_tokens = tuple(group_tokens)
        self._managers: list[Any] = []
        self._marks: dict[tuple[int, int], tuple[bytes, int]] = {}
        self._resting: dict[str, _Resting] = {}

    def bind(self, manager: Any) -> None:
        """Take vLLM's KV cache manager, once it exists."""
        self._managers = [
            (each.kv_cache_group_id, each.req_to_blocks) for each in manager.coordinator.single_type_managers
        ]

    def admit(self, request_id: str, computed: int, loaded: range | None) -> None:
        """Note on what a request rests that is now computed from token ``computed`` on. ``loaded``: the tokens loaded for it."""
        ends, starts = [0], []
        if loaded:
            ends.append(loaded.stop)
            starts.append(loaded.start)
        for group, size, blocks in self._groups(request_id):
            for place, block in enumerate(blocks[: computed // size]):
                if end := self._load_end(group, block):
                    ends.append(end)
                    starts.append(place * size)
            self._use_anew(group, [each.block_id for each in blocks[computed // size :]])
        known = self._resting.get(request_id)
        if starts:
            tokens = max(ends) if known is None else max(*ends, known.tokens)
            self._resting[request_id] = _Resting(tokens, min(starts))
            self._mark(request_id, self._resting[request_id], computed)

    def step(
        self, request_id: str, computed: int, new_block_ids: Sequence[Sequence[int]] | None = None
    ) -> None:
        """Mark what the request has computed on top of loads, up to token ``computed``. ``new_block_ids``: by group, what it got since."""
        for group, block_ids in enumerate(new_block_ids or ()):
            self._use_anew(group, block_ids)
        resting = self._resting.get(request_id)
        if resting is not None:
            self._mark(request_id, resting, computed)

    def finish(self, request_id: str, computed: int) -> int:
        """Where the last load ends that the request rested on, in tokens; 0 if all was computed since the engine started."""
        resting = self._resting.pop(request_id, None)
        if resting is not None:
            # A block whose last token was not sampled yet had no hash when it was looked at.
            resting.looked.clear()
            self._mark(request_id, resting, computed)
        return 0 if resting is None else resting.tokens

    @property
    def count(self) -> int:
        """The number of marks; some may be of blocks that are used otherwise now."""
        return len(self._marks)

    def _groups(self, request_id: str) -> list[tuple[int, int, Sequence[Any]]]:
        return [
            (group, size, own.get(request_id, ()))
            for group, own in self._managers
            if (size := self._group_tokens[group])
        ]

    def _mark(self, request_id: str, resting: _Resting, computed: int) -> None:
        for group, size, blocks in self._groups(request_id):
            first = resting.looked.get(group, resting.since // size)
            for place, block in enumerate(blocks[first : computed // size], first):
                # What an earlier load brought, or was computed then, does not rest on a later load.
                if block.block_hash is not None and not self._load_end(group, block):
                    self._marks[group, block.block_id] = (
                        block.block_hash,
                        min(resting.tokens, (place + 1) * size),
                    )
            resting.looked[group] = max(first, min(computed // size, len(blocks)))

    def _use_anew(self, group: int, block_ids: Sequence[int]) -> None:
        """The same block may get the same hash again, and its tokens be computed this time."""
        for each in block_ids:
            self._marks.pop((group, each), None)

    def _load_end(self, group: int, block: Any) -> int:
        """Where the load ends that a block rests on; 0 if it rests on none."""
        mark = self._marks.get((group, block.block_id))
        if mark is None:
            return 0
        block_hash, end = mark
        if block_hash == block.block_hash:
            return end
        del self._marks[group, block.block_id]
        return 0
