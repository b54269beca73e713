"""What CWM needs of the cache beside the engine (LMCache's server and coordinator).

Failures as in ``ports.engine``. A prefix shorter than one chunk is never an error: there is nothing
to store, pin or find.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, Self

from cwm.domain.engine import Tier
from cwm.domain.prefix import TokenIds

TIER_OF_ADAPTER: Final[Mapping[str, Tier]] = {
    "valkey": Tier.REDIS,
    "resp": Tier.REDIS,
    "fs_native": Tier.DISK,
    "fs": Tier.DISK,
}


@dataclass(frozen=True, slots=True)
class PrefixKey:
    """Names the chunks of a prefix: LMCache derives their hashes from exactly this."""

    root: str
    world_size: int
    token_ids: TokenIds
    cache_salt: str


@dataclass(frozen=True, slots=True)
class Placement:
    """One chunk by the directory: its hash (hex), the bytes of one copy, the tiers said to hold it.

    The directory can be wrong both ways; only a prefetch proves.
    """

    hash: str
    size_bytes: int
    tiers: frozenset[Tier]


@dataclass(frozen=True, slots=True)
class Prefetched:
    """Chunks found, and in L1 now, of all chunks asked for.

    ``loaded`` are those that L1 did not have, by the tier they came from; None where LMCache does not tell.
    """

    found: int
    total: int
    loaded: Mapping[Tier, int] | None = None

    @property
    def complete(self) -> bool:
        return self.found == self.total

    @property
    def in_l1(self) -> int:
        """Chunks that L1 had, which proves nothing about the tiers below it; 0 where LMCache does not tell."""
        return 0 if self.loaded is None else self.found - sum(self.loaded.values())


@dataclass(frozen=True, slots=True)
class SharedTierRoom:
    """A Redis's eviction policy (None where it does not tell), its bytes in use and their limit, if any."""

    policy: str | None
    used_bytes: int
    max_bytes: int | None


@dataclass(frozen=True, slots=True)
class AttachedModel:
    root: str
    world_size: int
    block_size: int


@dataclass(frozen=True, slots=True)
class KvTierFacts:
    """What server and coordinator say of themselves; sizes in tokens, None where not told.

    ``bare_adapters`` are those that store without an authenticating serde.
    """

    version: str
    chunk_size: int
    hash_algorithm: str
    attached: tuple[AttachedModel, ...]
    adapters: tuple[str, ...]
    instances: tuple[str, ...]
    bare_adapters: tuple[str, ...] | None = None

    @property
    def lower_tiers(self) -> tuple[Tier, ...]:
        """The tiers below L1 in the order in which chunks that several have are loaded; without those CWM does not know."""
        known = (TIER_OF_ADAPTER.get(adapter) for adapter in self.adapters)
        return tuple(dict.fromkeys(tier for tier in known if tier is not None))

    @property
    def first_tier(self) -> Tier | None:
        """Where everything that is stored must come from; None below an L1 alone, and of an adapter CWM does not know."""
        return TIER_OF_ADAPTER.get(self.adapters[0]) if self.adapters else None


@dataclass(frozen=True, slots=True)
class TierUsage:
    tier: Tier
    used_bytes: int
    capacity_bytes: int | None


class KvTier(Protocol):
    async def facts(self) -> KvTierFacts | None:
        """None where the configuration says that the engine has no LMCache."""

    async def on(self, instance: str) -> Self:
        """The same cache on one of its registered instances only: its L1, its adapters, its counts.

        CWM-5001 for one that is not registered. It is closed with the whole.
        """

    async def registered(self) -> int | None:
        """How many LMCache servers the coordinator knows; None where the engine has no LMCache. CWM-5001/5002/6001."""

    async def coordinator_chunk_size(self) -> int | None:
        """Tokens in a chunk by the coordinator, which hashes for itself; None where it does not tell."""

    async def lookup(self, prefix: PrefixKey) -> list[Placement]:
        """Placements of the full chunks by position; no tiers and no size for one the directory misses."""

    def lower_tiers(self) -> tuple[Tier, ...]:
        """As ``KvTierFacts.lower_tiers`` of the facts that were told last; empty before any were."""

    def expected_hashes(self, prefix: PrefixKey) -> list[str] | None:
        """The hashes these chunks must have; None for an algorithm that CWM does not compute."""

    async def pin(self, prefix: PrefixKey) -> int:
        """Pins are counters without an owner: call once per window."""

    async def unpin(self, prefix: PrefixKey) -> int: ...

    async def pins(self, cache_salt: str) -> dict[str, int]:
        """Pin counts by chunk hash, of everything under a salt."""

    async def pinned_total(self, cache_salt: str) -> int:
        """How many chunks under a salt have pins."""

    async def prefetch(self, prefix: PrefixKey) -> Prefetched:
        """Load what exists into L1 and wait for it: the one proof that chunks are really there."""

    async def storing(self) -> bool:
        """Whether chunks are being written from L1 to a lower tier right now."""

    async def drop_l1(self, prefix: PrefixKey) -> None:
        """Forget the L1 copies of a prefix on every instance."""

    async def delete(self, prefix: PrefixKey, hashes: Sequence[str]) -> int:
        """Delete these chunks of the prefix from every tier, adapter and instance; how many were named."""

    async def usage(self) -> list[TierUsage]: ...
