"""LMCache in memory: one server with L1, a Redis and a disk, and its coordinator, which hears of changes late."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, NamedTuple, Self

from cwm.adapters.lmcache.hashes import ALGORITHM, chunk_hashes
from cwm.domain.engine import Tier
from cwm.domain.errors import EngineConnectionError, EngineResponseError
from cwm.ports.kv_tier import (
    TIER_OF_ADAPTER,
    AttachedModel,
    KvTierFacts,
    Placement,
    Prefetched,
    PrefixKey,
    TierUsage,
)

INSTANCE: Final = "node0"
LOWER: Final = (Tier.REDIS, Tier.DISK)
ALL: Final = (Tier.CPU, *LOWER)
CHUNK_BYTES: Final = 1000
_PROBE: Final = 8192


class Name(NamedTuple):
    """What LMCache stores a chunk under. It names neither weights nor dtype: whoever stores first decides."""

    root: str
    cache_salt: str
    hash: str


class Place(NamedTuple):
    """Where a chunk is: the Redis has no server of its own."""

    server: int
    tier: Tier


class Copy(Enum):
    """``FORGED`` opens and is the KV of something else; ``BROKEN`` does not open."""

    SOUND = auto()
    FORGED = auto()
    BROKEN = auto()


@dataclass(slots=True)
class FakeKvTier:
    """``full`` tiers take nothing more, and nobody is told; while ``away`` neither server nor coordinator answers.

    With ``l1_is_read`` a request reads all that L1 has, which lets go of none of it then.
    """

    chunk_size: int = 32
    adapters: tuple[str, ...] = ("valkey", "fs_native")
    keyrings: tuple[tuple[str, ...], ...] = (("key",), ("key",))
    present: bool = True
    away: bool = False
    l1_is_read: bool = False
    beside_engines: dict[str, int] = field(default_factory=dict)
    """How many leading chunks of any prefix the server of an engine has on its own."""
    servers: dict[str, Self] = field(default_factory=dict)
    """Of engines that have another server than this one; they share the Redis, and each has a disk of its own."""
    lookup_gate: asyncio.Event | None = None
    lookups: int = 0
    full: set[Tier] = field(default_factory=set)
    copies: dict[Name, dict[Tier, Copy]] = field(default_factory=dict)
    attached: dict[str, None] = field(default_factory=dict)
    """Roots of the models that have stored something."""
    _pins: Counter[Name] = field(default_factory=Counter)
    _directory: dict[Name, set[Place]] = field(default_factory=dict)
    """The coordinator's, one for all servers."""
    _news: list[tuple[Name, Place, bool]] = field(default_factory=list)
    _on_their_way: list[Name] = field(default_factory=list)
    _last_facts: KvTierFacts | None = None

    async def facts(self) -> KvTierFacts | None:
        if not self._asked():
            return None
        attached = tuple(AttachedModel(root, 1, self.chunk_size) for root in self.attached)
        self._last_facts = KvTierFacts(
            "0.5.6",
            self.chunk_size,
            ALGORITHM,
            attached,
            self.adapters,
            (INSTANCE,),
            bare_adapters=(),
            keyrings=self.keyrings,
        )
        return self._last_facts

    def beside(self, engine: str) -> Self:
        return self.servers.get(engine, self)

    async def on(self, instance: str) -> Self:
        self._asked()
        if instance != INSTANCE:
            raise EngineConnectionError(f"LMCache '{instance}' is not registered with the coordinator.")
        return self

    async def registered(self) -> int | None:
        return 1 + len(self.servers) if self._asked() else None

    async def coordinator_chunk_size(self) -> int | None:
        chunks = await self.pin(PrefixKey("probe", 1, (0,) * _PROBE, "probe"))
        await self.unpin(PrefixKey("probe", 1, (0,) * _PROBE, "probe"))
        return _PROBE // chunks if chunks else None

    async def lookup(self, prefix: PrefixKey) -> list[Placement]:
        """As the directory was: what happened since the last look is in the next one."""
        names = self.names(prefix) if self._asked() else []
        tiers_of_each = [frozenset(place.tier for place in self._directory.get(name, ())) for name in names]
        for name, place, is_there in self._news:
            places = self._directory.setdefault(name, set())
            (places.add if is_there else places.discard)(place)
        self._news.clear()
        self.lookups += 1
        if self.lookup_gate is not None:
            await self.lookup_gate.wait()
        return [
            Placement(name.hash, CHUNK_BYTES if tiers else 0, tiers, self._holders(at))
            for at, (name, tiers) in enumerate(zip(names, tiers_of_each, strict=True))
        ]

    def _holders(self, at: int) -> frozenset[str]:
        return frozenset(engine for engine, chunks in self.beside_engines.items() if at < chunks)

    def lower_tiers(self) -> tuple[Tier, ...]:
        return () if self._last_facts is None else self._last_facts.lower_tiers

    def expected_hashes(self, prefix: PrefixKey) -> list[str] | None:
        return None if self._last_facts is None else chunk_hashes(prefix.token_ids, self.chunk_size)

    async def pin(self, prefix: PrefixKey) -> int:
        """Also of chunks that do not exist."""
        names = self.names(prefix) if self._asked() else []
        self._pins.update(names)
        return len(names)

    async def unpin(self, prefix: PrefixKey) -> int:
        """Also of chunks that nobody pinned."""
        names = self.names(prefix) if self._asked() else []
        self._pins = +(self._pins - Counter(names))
        return len(names)

    async def pins(self, cache_salt: str) -> dict[str, int]:
        self._asked()
        return {name.hash: count for name, count in self._pins.items() if name.cache_salt == cache_salt}

    async def pinned_total(self, cache_salt: str) -> int:
        return len(await self.pins(cache_salt))

    async def prefetch(self, prefix: PrefixKey) -> Prefetched:
        if (server := self.beside(prefix.engine)) is not self:
            return await server.prefetch(prefix)
        names = self.names(prefix) if self._asked() else []
        if not names:
            return Prefetched(0, 0)
        if prefix.root not in self.attached:
            raise EngineResponseError(f"LMCache answered 503: no layout registered for '{prefix.root}'")
        loaded: Counter[Tier] = Counter()
        for name in names:
            tier, copy = self.best(name) or (Tier.CPU, None)
            if copy is Copy.BROKEN:
                self.discard_broken(name)
            elif copy is not None and tier is not Tier.CPU:
                loaded[tier] += 1
                self._put(name, Tier.CPU, copy)
        found = sum(Tier.CPU in self.copies.get(name, {}) for name in names)
        return Prefetched(found, len(names), dict(loaded))

    async def storing(self) -> bool:
        """What the engine handed over lands below L1 with the first look at whether it has."""
        busy, landing = self._asked() and bool(self._on_their_way), self._on_their_way
        self._on_their_way = []
        for name in landing:
            if (copy := self.copies.get(name, {}).get(Tier.CPU)) is not None:
                for tier in LOWER:
                    self._put(name, tier, copy)
        return busy

    async def refill(self, prefix: PrefixKey) -> None:
        if (server := self.beside(prefix.engine)) is not self:
            return await server.refill(prefix)
        if self._asked():
            self._on_their_way += self.names(prefix)
        return None

    async def drop_l1(self, prefix: PrefixKey) -> None:
        for name in self.names(prefix) if self._asked() and not self.l1_is_read else []:
            for server in self._all():
                server._take(name, Tier.CPU)

    async def delete(self, prefix: PrefixKey, hashes: Sequence[str]) -> int:
        """Whether they are pinned or not."""
        for name in hashes if self._asked() else ():
            for tier in ALL:
                for server in self._all():
                    server._take(Name(prefix.root, prefix.cache_salt, name), tier)
        return len(hashes) if self.present else 0

    async def usage(self) -> list[TierUsage]:
        tiers = ALL if self._asked() else ()
        held = Counter(tier for copies in self.copies.values() for tier in copies)
        return [TierUsage(tier, held[tier] * CHUNK_BYTES, None) for tier in tiers]

    # What the engine does.

    def names(self, prefix: PrefixKey) -> list[Name]:
        hashes = chunk_hashes(prefix.token_ids, self.chunk_size)
        return [Name(prefix.root, prefix.cache_salt, name) for name in hashes]

    def best(self, name: Name) -> tuple[Tier, Copy] | None:
        """The copy that is read: of the first tier that has one, however sound those of the next are."""
        order = (Tier.CPU, *(TIER_OF_ADAPTER[adapter] for adapter in self.adapters))
        held = self.copies.get(name, {})
        return next(((tier, held[tier]) for tier in order if tier in held), None)

    def offer(self, root: str, chunks: Mapping[Name, Copy]) -> None:
        """Take what no tier has; what only L1 has is not written below it again."""
        self.attached[root] = None
        for name, copy in chunks.items():
            if not self.copies.get(name):
                self._put(name, Tier.CPU, copy)
                self._on_their_way.append(name)

    def discard_broken(self, name: Name) -> None:
        """What did not open is written anew by whoever computes it."""
        for tier in [tier for tier, copy in self.copies[name].items() if copy is Copy.BROKEN]:
            self._take(name, tier)

    # What befalls it.

    def lose(self, prefix: PrefixKey, tiers: Iterable[Tier] = ALL, *, keep: int = 0) -> None:
        """The copies behind the first ``keep`` chunks are gone, and the directory does not know."""
        for name in self.names(prefix)[keep:]:
            for tier in tiers:
                self.copies.get(name, {}).pop(tier, None)

    def damage(self, prefix: PrefixKey, at: int, copy: Copy, tiers: Iterable[Tier] = ALL) -> None:
        """The copies of one chunk are other bytes."""
        held = self.copies[self.names(prefix)[at]]
        held.update({tier: copy for tier in tiers if tier in held})

    def evict(self, cache_salt: str) -> None:
        """A sweep of the coordinator's quota: what is not pinned leaves the first adapter."""
        for name in list(self.copies):
            if name.cache_salt == cache_salt and not self._pins[name]:
                self._take(name, TIER_OF_ADAPTER[self.adapters[0]])

    def evict_l1(self) -> None:
        """L1 needs its room for others: pins do not protect there."""
        for name in list(self.copies):
            self._take(name, Tier.CPU)

    def forget(self) -> None:
        """The coordinator starts again without its last checkpoint: pins are back, placements are not."""
        self._directory.clear()
        self._news.clear()

    def stored(self, cache_salt: str) -> dict[str, frozenset[Tier]]:
        """The tiers that really hold each chunk of a salt."""
        return {
            n.hash: frozenset(held) for n, held in self.copies.items() if held and n.cache_salt == cache_salt
        }

    def _asked(self) -> bool:
        if self.present and self.away:
            raise EngineConnectionError("LMCache does not answer.")
        return self.present

    def _all(self) -> Iterable[FakeKvTier]:
        return (self, *self.servers.values())

    def _put(self, name: Name, tier: Tier, copy: Copy) -> None:
        if tier not in self.full:
            for server in self._all() if tier is Tier.REDIS else (self,):
                server.copies.setdefault(name, {})[tier] = copy
            self._news.append((name, self._place(tier), True))

    def _take(self, name: Name, tier: Tier) -> None:
        for server in self._all() if tier is Tier.REDIS else (self,):
            if server.copies.get(name, {}).pop(tier, None) is not None:
                server._news.append((name, server._place(tier), False))

    def _place(self, tier: Tier) -> Place:
        return Place(0 if tier is Tier.REDIS else id(self), tier)


def several(*names: str) -> dict[str, FakeKvTier]:
    """A server beside each of these engines: L1 and the disk are its own; the Redis and the coordinator are shared."""
    servers = {name: FakeKvTier() for name in names}
    first = servers[names[0]]
    for server in servers.values():
        server.servers = {name: other for name, other in servers.items() if other is not server}
        server._directory, server._news = first._directory, first._news
    return servers
