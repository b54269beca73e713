"""The cache beside the engine (LMCache's server and coordinator).

Errors are those of ``ports.engine``. A prefix shorter than one chunk is never an error: there is nothing to store,
pin or find.
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
    """Identifies the chunks of a prefix. LMCache derives their hashes from these fields.

    ``engine`` is not one of them: it names the engine whose LMCache server loads the chunks; empty for the first.
    """

    root: str
    world_size: int
    token_ids: TokenIds
    cache_salt: str
    engine: str = ""


@dataclass(frozen=True, slots=True)
class Placement:
    """One chunk as the directory lists it: its hash (hex), the bytes of one copy, and the tiers listed for it.

    ``engines``: those whose LMCache server has a copy of its own, which only tells anything where there are several. The directory can be wrong in both directions; only a prefetch proves that a chunk is there.
    """

    hash: str
    size_bytes: int
    tiers: frozenset[Tier]
    engines: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Prefetched:
    """The result of a prefetch: ``found`` of ``total`` requested chunks are in L1 now.

    ``loaded`` counts the chunks that L1 did not have before, by the tier that they came from; None when LMCache
    does not report it.
    """

    found: int
    total: int
    loaded: Mapping[Tier, int] | None = None

    @property
    def complete(self) -> bool:
        return self.found == self.total

    @property
    def in_l1(self) -> int:
        """Chunks that L1 already had, which says nothing about lower tiers.

        0 when LMCache does not report ``loaded``.
        """
        return 0 if self.loaded is None else self.found - sum(self.loaded.values())


@dataclass(frozen=True, slots=True)
class SharedTierRoom:
    """A Redis's eviction policy (None if not reported), its used bytes, and its memory limit in bytes, if any."""

    policy: str | None
    used_bytes: int
    max_bytes: int | None


@dataclass(frozen=True, slots=True)
class AttachedModel:
    """A model whose engine is attached to the LMCache server. ``block_size`` in tokens."""

    root: str
    world_size: int
    block_size: int


@dataclass(frozen=True, slots=True)
class KvTierFacts:
    """What server and coordinator report of themselves. Sizes are in tokens, None when not reported.

    ``bare_adapters`` are those that store chunks without an authenticating serde.
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
        """The tiers below L1 that CWM knows, in the order in which LMCache prefers them for loading."""
        tiers = (TIER_OF_ADAPTER.get(adapter) for adapter in self.adapters)
        return tuple(dict.fromkeys(tier for tier in tiers if tier is not None))

    @property
    def first_tier(self) -> Tier | None:
        """The tier that every stored chunk reaches first.

        None when there is only L1, or when CWM does not know the adapter.
        """
        return TIER_OF_ADAPTER.get(self.adapters[0]) if self.adapters else None


@dataclass(frozen=True, slots=True)
class TierUsage:
    """Used and available bytes of a tier; ``capacity_bytes`` is None for no known limit."""

    tier: Tier
    used_bytes: int
    capacity_bytes: int | None


class KvTier(Protocol):
    async def facts(self) -> KvTierFacts | None:
        """What the cache reports of itself; None when the engine is configured without LMCache."""

    def beside(self, engine: str) -> Self:
        """The same cache through the LMCache server of one engine; the first's for an empty name.

        Its facts and what it is storing are that server's. It is closed together with the whole.
        """

    async def on(self, instance: str) -> Self:
        """The same cache, restricted to one registered instance: its L1, its adapters, its counters.

        CWM-5001 when the instance is not registered. It is closed together with the whole.
        """

    async def registered(self) -> int | None:
        """How many LMCache servers the coordinator knows; None for an engine without LMCache. CWM-5001/5002/6001."""

    async def coordinator_chunk_size(self) -> int | None:
        """Tokens in a chunk according to the coordinator, which computes hashes itself.

        None when it does not report it.
        """

    async def lookup(self, prefix: PrefixKey) -> list[Placement]:
        """Placements of the full chunks, by position. A chunk missing in the directory has no tiers and size 0."""

    def lower_tiers(self) -> tuple[Tier, ...]:
        """``KvTierFacts.lower_tiers`` of the last reported facts; empty before the first report."""

    def expected_hashes(self, prefix: PrefixKey) -> list[str] | None:
        """The hashes that these chunks must have; None for a hash algorithm that CWM does not compute."""

    async def pin(self, prefix: PrefixKey) -> int:
        """Pin the prefix; returns how many chunks were pinned.

        Pins are counters without an owner: pin once per window.
        """

    async def unpin(self, prefix: PrefixKey) -> int:
        """Take one pin off the prefix; returns how many chunks were unpinned."""

    async def pins(self, cache_salt: str) -> dict[str, int]:
        """Pin counts of all chunks under a salt, by chunk hash."""

    async def pinned_total(self, cache_salt: str) -> int:
        """How many chunks under a salt are pinned."""

    async def prefetch(self, prefix: PrefixKey) -> Prefetched:
        """Load all existing chunks into L1 and wait: the only proof that they are really there."""

    async def storing(self) -> bool:
        """Whether chunks are being written from L1 to a lower tier right now."""

    async def refill(self, prefix: PrefixKey) -> None:
        """Begin to write the L1 copies of the server beside the prefix's engine to every tier below, also to one that refused them.

        Whether it is still at it :meth:`storing` says. An LMCache without CWM's own launcher does nothing.
        """

    async def drop_l1(self, prefix: PrefixKey) -> None:
        """Remove the L1 copies of a prefix from every instance."""

    async def delete(self, prefix: PrefixKey, hashes: Sequence[str]) -> int:
        """Delete these chunks of the prefix from every tier, adapter and instance.

        Returns how many hashes were sent.
        """

    async def usage(self) -> list[TierUsage]: ...
