"""Store: make LMCache store every chunk of a prefix, and prove it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from cwm.background import cancel_and_wait
from cwm.domain.engine import Tier
from cwm.domain.errors import StorageWriteError
from cwm.domain.polling import pause_seconds
from cwm.domain.window import Chunk
from cwm.ports.clock import Clock
from cwm.ports.engine import Completion, Engine, Generation
from cwm.ports.kv_tier import KvTier, Placement, Prefetched, PrefixKey
from cwm.ports.registry import StoredChunks
from cwm.services.engines.directory import EngineDirectory
from cwm.services.kv.prefix import Prefix

T = TypeVar("T")

_BELOW_L1: Final = frozenset({Tier.REDIS, Tier.DISK})
_NO_CHUNKS: Final = StoredChunks((), Tier.DISK, {})
_POLL_SECONDS: Final = 0.005
_READ_BACK_AGAIN_SECONDS: Final = (0.01, 0.1)
_DIRECTORY_SECONDS: Final = 1.25  # LMCache reports stored chunks to its coordinator at least once a second


async def read_back(kv_tier: KvTier, key: PrefixKey) -> Prefetched:
    """Drop ``key`` from L1 and prefetch it. Chunks that are ``in_l1`` nevertheless are not proven.

    L1 keeps chunks that a request is reading, and another request may load them at the same moment. Most are free
    shortly after; those of an aborted request stay for minutes.
    """
    for pause in (*_READ_BACK_AGAIN_SECONDS, None):
        await kv_tier.drop_l1(key)
        prefetched = await kv_tier.prefetch(key)
        if pause is None or not (prefetched.complete and prefetched.in_l1):
            break
        await asyncio.sleep(pause)
    return prefetched


def all_below_l1(placements: list[Placement], prefix: Prefix) -> bool:
    """Whether the directory lists every chunk below L1. Use it only for chunks that cannot be read back."""
    below = [placement for placement in placements if placement.tiers & _BELOW_L1]
    return len(below) == prefix.chunk_count


@dataclass(frozen=True, slots=True)
class _Proof:
    """``found``: chunks that came back from below L1. ``stored`` is set if all did."""

    found: int
    stored: StoredChunks | None


@dataclass(frozen=True, slots=True)
class Store:
    """Wait for the lower tiers, drop L1, prefetch; flush and repeat if chunks are missing.

    A chunk that comes back was really stored. The caller sets pins. ``timeout_seconds`` bounds the whole call.
    """

    engine: Engine
    kv_tier: KvTier
    directory: EngineDirectory
    clock: Clock
    timeout_seconds: float

    async def __call__(
        self, prefix: Prefix, first: Callable[[], Awaitable[T]] | None = None
    ) -> tuple[StoredChunks, T | None]:
        """Prove that every chunk of ``prefix`` is stored. CWM-4001 if that fails until the timeout.

        For chunks that L1 does not drop, the directory's entry counts as proof.

        The session's turns made the engine compute these chunks, so they are in LMCache or on their way: a flush
        request is sent only for chunks that do not come back. ``first``, which asks the engine for the whole prefix, runs
        while the chunks are read back, and its result is returned: the engine still has the KV then. Without
        ``first`` one token is requested, which shows whether this is still the same engine.
        """
        if prefix.chunk_count == 0:
            return _NO_CHUNKS, None
        deadline = self.clock.monotonic() + self.timeout_seconds
        result, proof = await self._prove_beside(prefix, first)
        if proof.stored is None and first is not None:
            # The answer to ``first`` has flushed what was missing.
            proof = await self._prove(prefix)
        while proof.stored is None and self.clock.monotonic() < deadline:
            await self._ask(prefix, prefix.request())
            proof = await self._prove(prefix)
        if proof.stored is not None:
            return proof.stored, result
        raise StorageWriteError(
            f"Only {proof.found} of {prefix.chunk_count} blocks could be stored and read back.",
            blocks_found=proof.found,
            blocks_total=prefix.chunk_count,
        )

    async def beside(
        self, prefix: Prefix, elsewhere: Prefix, first: Callable[[], Awaitable[T]] | None = None
    ) -> tuple[Prefetched, T | None]:
        """Load every chunk of ``prefix`` into L1 beside another engine, of the same deployment; what is missing is stored first.

        ``first``, which asks the prefix's engine for the whole of it, comes first; its result is returned. CWM-4001.
        """
        result = None
        if first is None:
            await self._ask(prefix, prefix.request())
        else:
            result = await first()
        if prefix.chunk_count == 0 or elsewhere.chunk_count == 0:
            return Prefetched(0, 0), result
        await self._wait_for_stores(prefix)
        prefetch = await self.kv_tier.prefetch(elsewhere.key)
        if not _is_whole(prefetch, prefix):
            await self(prefix)
            prefetch = await self._refilled(prefix, elsewhere)
        if not _is_whole(prefetch, prefix):
            raise StorageWriteError(
                f"Only {prefetch.found} of {prefix.chunk_count} blocks reached the cache beside '{elsewhere.identity.engine}': do "
                "the engines share a tier?",
                blocks_found=prefetch.found,
                blocks_total=prefix.chunk_count,
            )
        return prefetch, result

    async def _refilled(self, prefix: Prefix, elsewhere: Prefix) -> Prefetched:
        """What can be loaded beside the other engine, once the tier between the two has been offered all that L1 of the first has.

        LMCache offers a chunk once. One that this tier refused then is on the first engine's own disk, and proven by it.
        """
        for pause in (*_READ_BACK_AGAIN_SECONDS, None):
            await self.kv_tier.refill(prefix.key)
            await self._wait_for_stores(prefix)
            prefetch = await self.kv_tier.prefetch(elsewhere.key)
            if pause is None or _is_whole(prefetch, prefix):
                break
            await asyncio.sleep(pause)
        return prefetch

    async def listed(self, prefix: Prefix) -> StoredChunks:
        """The chunks of ``prefix`` and where the directory lists them. No tier is changed, and nothing is proven."""
        return _stored(await self._placements(prefix)) if prefix.chunk_count else _NO_CHUNKS

    async def _prove_beside(
        self, prefix: Prefix, first: Callable[[], Awaitable[T]] | None
    ) -> tuple[T | None, _Proof]:
        """Run ``first`` while the chunks are read back."""
        proof_task = asyncio.create_task(self._prove(prefix))
        try:
            if first is None:
                await self._ask(prefix, prefix.request(1))
                return None, await proof_task
            return await first(), await proof_task
        finally:
            await cancel_and_wait(proof_task)

    async def _ask(self, prefix: Prefix, request: Generation) -> Completion:
        """The engine's answer. CWM-5002 if another engine answered than the one that computed the prefix."""
        answer = await self.engine.complete(request)
        self.directory.confirm(prefix.identity, answer)
        return answer

    async def _prove(self, prefix: Prefix) -> _Proof:
        await self._wait_for_stores(prefix)
        prefetched = await read_back(self.kv_tier, prefix.key)
        if _is_whole(prefetched, prefix):
            placements = await self._placements(prefix)
            if not prefetched.in_l1 or all_below_l1(placements, prefix):
                return _Proof(prefix.chunk_count, _stored(placements))
        return _Proof(prefetched.found - prefetched.in_l1, None)

    async def _wait_for_stores(self, prefix: Prefix) -> None:
        """Wait until LMCache has written its chunks below L1; dropping them earlier would require another flush."""
        started = self.clock.monotonic()
        until = started + 1.5 + 0.02 * prefix.chunk_count
        server = self.kv_tier.beside(prefix.identity.engine)
        while await server.storing() and self.clock.monotonic() < until:
            await self._pause(started)

    async def _placements(self, prefix: Prefix) -> list[Placement]:
        """The placements when the directory lists all chunks in the shared tier, or after 1.25 s as they are.

        The directory lags by design and is lost in a crash: it says where a chunk is, not whether it exists.
        """
        started = self.clock.monotonic()
        while True:
            placements = await self.kv_tier.lookup(prefix.key)
            is_settled = all(Tier.REDIS in placement.tiers for placement in placements)
            if is_settled or self.clock.monotonic() - started > _DIRECTORY_SECONDS:
                return placements
            await self._pause(started)

    async def _pause(self, started: float) -> None:
        await asyncio.sleep(pause_seconds(self.clock.monotonic() - started, _POLL_SECONDS))


def _is_whole(prefetched: Prefetched, prefix: Prefix) -> bool:
    return prefetched.complete and prefetched.total == prefix.chunk_count


def _stored(placements: list[Placement]) -> StoredChunks:
    counts = Counter(str(tier) for placement in placements for tier in placement.tiers)
    lowest = next(
        (tier for tier in (Tier.REDIS, Tier.DISK) if counts[str(tier)] == len(placements)),
        Tier.DISK if any(placement.tiers & _BELOW_L1 for placement in placements) else Tier.CPU,
    )
    chunks = tuple(Chunk(placement.hash, placement.size_bytes) for placement in placements)
    return StoredChunks(chunks, lowest, dict(sorted(counts.items())))
