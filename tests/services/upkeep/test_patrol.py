"""What a patrol takes for proof, over a real registry and a cache that holds on to chunks on demand.

Its normal behaviour is the real cache's: the live tests patrol it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import pytest

from cwm.adapters.local.clock import SystemClock
from cwm.adapters.sql.registry.registry import SqlRegistry
from cwm.domain.engine import EngineIdentity, Tier
from cwm.domain.errors import InvalidParameterError
from cwm.domain.upkeep import Outcome
from cwm.ports.kv_tier import KvTierFacts, Placement, Prefetched, PrefixKey
from cwm.services.upkeep.patrol import Patrol
from tests.contracts.nouns import IDENTITY, LATER, freeze


@dataclass
class OneEngine:
    serves: str = "tiny"

    async def identity(self, model: str | None = None) -> EngineIdentity:
        if model != self.serves:
            raise InvalidParameterError(f"The engine does not serve '{model}'.", model=model)
        return IDENTITY


@dataclass
class HoldingTier:
    """Both chunks are in L1 and stay there; the directory says that they are in ``tiers``."""

    tiers: frozenset[Tier]
    in_l1: int = 2
    comes_from: Tier = Tier.REDIS
    adapters: tuple[str, ...] = ("valkey",)

    async def facts(self) -> KvTierFacts | None:
        return KvTierFacts("0.5.6", 32, "blake3", (), self.adapters, ("node0",))

    async def drop_l1(self, prefix: PrefixKey) -> None:
        pass

    async def prefetch(self, prefix: PrefixKey) -> Prefetched:
        return Prefetched(2, 2, {self.comes_from: 2 - self.in_l1})

    async def lookup(self, prefix: PrefixKey) -> list[Placement]:
        return [Placement(f"{n:064x}", 1000, self.tiers) for n in range(2)]


async def patrol(registry: SqlRegistry, tier: HoldingTier, serves: str = "tiny") -> Patrol:
    """Of one window that was stored before ``LATER``."""
    await freeze(registry, "w1", "a", "b")
    nothing = cast("Any", None)
    return Patrol(registry, cast("Any", tier), cast("Any", OneEngine(serves)), nothing, SystemClock())


async def proven(registry: SqlRegistry, name: str = "w1") -> bool:
    window = await registry.window("acme", name)
    assert window is not None
    assert window.proven_at is not None
    return window.proven_at > LATER


async def test_what_comes_back_from_below_l1_is_proven(registry: SqlRegistry) -> None:
    look = await patrol(registry, HoldingTier(frozenset(), in_l1=0))
    assert await look(8, SystemClock().now(), dry_run=False) == []
    assert await proven(registry)


async def test_what_only_l1_holds_is_not_proven_and_stands_in_nobodys_way(registry: SqlRegistry) -> None:
    tier = HoldingTier(frozenset({Tier.CPU}))
    look = await patrol(registry, tier)
    assert await look(8, SystemClock().now(), dry_run=False) == []
    assert not await proven(registry)
    tier.in_l1 = 0
    assert await look(8, SystemClock().now(), dry_run=False) == []
    assert not await proven(registry)


@pytest.mark.parametrize("after_loss", [False, True])
async def test_of_what_l1_does_not_let_go_of_the_directory_decides_unless_something_was_lost(
    registry: SqlRegistry, *, after_loss: bool
) -> None:
    tier = HoldingTier(frozenset({Tier.CPU, Tier.REDIS}))
    look = await patrol(registry, tier)
    steps = await look(8, SystemClock().now(), dry_run=False, after_loss=after_loss)
    assert [step.outcome for step in steps] == [Outcome.POSTPONED] * after_loss
    assert await proven(registry) is not after_loss
    tier.in_l1 = 0
    assert await look(8, SystemClock().now(), dry_run=False, after_loss=after_loss) == []
    assert await proven(registry)


@pytest.mark.parametrize(
    ("adapters", "comes_from"),
    [(("valkey", "fs_native"), Tier.DISK), (("fs_native", "valkey"), Tier.REDIS)],
)
async def test_what_the_tier_that_is_asked_first_lost_is_to_be_stored_again_after_a_loss_only(
    registry: SqlRegistry, adapters: tuple[str, ...], comes_from: Tier
) -> None:
    look = await patrol(registry, HoldingTier(frozenset(), 0, comes_from, adapters))
    (planned,) = await look(8, SystemClock().now(), dry_run=True, after_loss=True)
    assert (planned.outcome, planned.detail) == (Outcome.PLANNED, f"blocks are left in {comes_from} only")
    assert not await proven(registry)
    assert await look(8, SystemClock().now(), dry_run=False) == []
    assert await proven(registry)


@pytest.mark.parametrize("after_loss", [False, True])
async def test_a_window_of_a_model_that_is_not_served_any_more_stands_in_nobodys_way(
    registry: SqlRegistry, *, after_loss: bool
) -> None:
    look = await patrol(registry, HoldingTier(frozenset(), in_l1=0), serves="other")
    await freeze(registry, "w2", "c", "d", model="other")
    for _ in range(2):
        assert await look(1, SystemClock().now(), dry_run=False, after_loss=after_loss) == []
    assert not await proven(registry)
    assert await proven(registry, "w2")
