"""Make the engine's cache hold a prefix, and prove that it does."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import Final

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

_BELOW_L1: Final = frozenset({Tier.REDIS, Tier.DISK})
_POLL_SECONDS: Final = 0.005
_READ_BACK_AGAIN_SECONDS: Final = (0.01, 0.1)
_DIRECTORY_SECONDS: Final = 1.25  # LMCache tells its coordinator what it stored once a second, or oftener


async def read_back(kv_tier: KvTier, key: PrefixKey) -> Prefetched:
    """What comes back of ``key`` when L1 was told to forget it; what is ``in_l1`` all the same is not proven.

    L1 keeps chunks that a request is reading, and others may load them at the same moment: most are free a moment
    later, but those of a request that was given up are kept for minutes.
    """
    for pause in (*_READ_BACK_AGAIN_SECONDS, None):
        await kv_tier.drop_l1(key)
        back = await kv_tier.prefetch(key)
        if pause is None or not (back.complete and back.in_l1):
            break
        await asyncio.sleep(pause)
    return back


def all_below_l1(placements: list[Placement], prefix: Prefix) -> bool:
    """Whether the directory says so of every chunk, which is to be believed only of what cannot be read back."""
    below = [placement for placement in placements if placement.tiers & _BELOW_L1]
    return len(below) == prefix.chunk_count


@dataclass(frozen=True, slots=True)
class _Proof:
    """How many chunks came back from below L1; ``stored`` if that was all of them."""

    found: int
    stored: StoredChunks | None


@dataclass(frozen=True, slots=True)
class Store:
    """Flush what must be, wait for the lower tiers, drop L1, prefetch: what comes back was really stored.

    Pins are the caller's. ``timeout_seconds`` bounds the whole of it.
    """

    engine: Engine
    kv_tier: KvTier
    directory: EngineDirectory
    clock: Clock
    timeout_seconds: float

    async def __call__(
        self, prefix: Prefix, first: Generation | None = None
    ) -> tuple[StoredChunks, Completion | None]:
        """Prove every chunk of ``prefix``. CWM-4001 when that fails until the timeout.

        Of chunks that L1 does not let go of, the directory's word is taken.

        Its turns had the engine compute them, and what the engine computed is in the cache or on its way there: it is
        flushed only where it does not come back. ``first`` goes out beside the reading, and its answer comes back: a
        longer request over the same prefix, while the engine still has the KV that it computed itself. Without it a
        token is asked for, which tells whether this is still the same engine.
        """
        if prefix.chunk_count == 0:
            return StoredChunks((), Tier.DISK, {}), None
        deadline = self.clock.monotonic() + self.timeout_seconds
        answer, proof = await self._prove_beside(prefix, first or prefix.request(1))
        if proof.stored is None and first is not None:
            # By now it has flushed what was not there.
            proof = await self._prove(prefix)
        while proof.stored is None and self.clock.monotonic() < deadline:
            await self._ask(prefix, prefix.request())
            proof = await self._prove(prefix)
        if proof.stored is not None:
            return proof.stored, answer
        raise StorageWriteError(
            f"Only {proof.found} of {prefix.chunk_count} blocks could be stored and read back.",
            blocks_found=proof.found,
            blocks_total=prefix.chunk_count,
        )

    async def _prove_beside(self, prefix: Prefix, request: Generation) -> tuple[Completion, _Proof]:
        """Ask the engine for something else while the chunks are read back."""
        proving = asyncio.create_task(self._prove(prefix))
        try:
            return await self._ask(prefix, request), await proving
        finally:
            await cancel_and_wait(proving)

    async def _ask(self, prefix: Prefix, request: Generation) -> Completion:
        """The engine's answer. CWM-5002 from another engine than the prefix was computed by."""
        answer = await self.engine.complete(request)
        self.directory.confirm(prefix.identity, answer.fingerprint)
        return answer

    async def _prove(self, prefix: Prefix) -> _Proof:
        await self._wait_for_stores(prefix)
        back = await read_back(self.kv_tier, prefix.key)
        if back.complete and back.total == prefix.chunk_count:
            placements = await self._placements(prefix)
            if not back.in_l1 or all_below_l1(placements, prefix):
                return _Proof(prefix.chunk_count, _stored(placements))
        return _Proof(back.found - back.in_l1, None)

    async def _wait_for_stores(self, prefix: Prefix) -> None:
        """Dropping L1 before its chunks were written below would only mean to flush again."""
        started = self.clock.monotonic()
        until = started + 1.5 + 0.02 * prefix.chunk_count
        while await self.kv_tier.storing() and self.clock.monotonic() < until:
            await self._pause(started)

    async def _placements(self, prefix: Prefix) -> list[Placement]:
        """Placements once the directory shows all in the shared tier, or as they are when its time is up.

        The directory is late by design and forgets after a crash: it says where, never whether.
        """
        started = self.clock.monotonic()
        while True:
            placements = await self.kv_tier.lookup(prefix.key)
            settled = all(Tier.REDIS in placement.tiers for placement in placements)
            if settled or self.clock.monotonic() - started > _DIRECTORY_SECONDS:
                return placements
            await self._pause(started)

    async def _pause(self, started: float) -> None:
        await asyncio.sleep(pause_seconds(self.clock.monotonic() - started, _POLL_SECONDS))


def _stored(placements: list[Placement]) -> StoredChunks:
    held = Counter(str(tier) for placement in placements for tier in placement.tiers)
    lowest = next(
        (tier for tier in (Tier.REDIS, Tier.DISK) if held[str(tier)] == len(placements)),
        Tier.DISK if any(placement.tiers & _BELOW_L1 for placement in placements) else Tier.CPU,
    )
    chunks = tuple(Chunk(placement.hash, placement.size_bytes) for placement in placements)
    return StoredChunks(chunks, lowest, dict(sorted(held.items())))
