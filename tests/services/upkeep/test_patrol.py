"""What a patrol takes for proof, in front of a cache in memory that holds on to chunks on demand."""

from __future__ import annotations

import pytest

from cwm.adapters.sql.database import Database
from cwm.domain.engine import Tier
from cwm.domain.upkeep import Step, StepOutcome
from cwm.domain.window import Durability
from tests.fakes.engine import FakeEngine
from tests.fakes.kv_tier import LOWER, FakeKvTier
from tests.services.windows_of import Gateway, gateway


async def look(
    cwm: Gateway, limit: int = 8, *, dry_run: bool = False, after_loss: bool = False
) -> list[Step]:
    return await cwm.patrol(limit, cwm.clock.now(), dry_run=dry_run, after_loss=after_loss)


async def proven(cwm: Gateway, name: str = "w1") -> bool:
    """Since it was stored."""
    window = await cwm.registry.window("acme", name)
    assert window is not None
    assert window.proven_at is not None
    return window.proven_at > window.updated_at


async def test_what_comes_back_from_below_l1_is_proven_whatever_the_directory_says(cwm: Gateway) -> None:
    await cwm.window()
    cwm.kv_tier.forget()
    assert await look(cwm) == []
    assert await proven(cwm)


async def test_what_only_l1_holds_is_not_proven_and_stands_in_nobodys_way(cwm: Gateway) -> None:
    key = await cwm.key(await cwm.window())
    cwm.kv_tier.forget()
    cwm.kv_tier.lose(key, LOWER)
    cwm.kv_tier.l1_is_read = True
    assert await look(cwm) == []
    assert not await proven(cwm)
    cwm.kv_tier.l1_is_read = False
    assert await look(cwm) == []
    assert not await proven(cwm), "it was set aside"


@pytest.mark.parametrize("after_loss", [False, True])
async def test_of_what_l1_does_not_let_go_of_the_directory_decides_unless_something_was_lost(
    cwm: Gateway, *, after_loss: bool
) -> None:
    await cwm.window()
    cwm.kv_tier.l1_is_read = True
    steps = await look(cwm, after_loss=after_loss)
    assert [step.outcome for step in steps] == [StepOutcome.POSTPONED] * after_loss
    assert await proven(cwm) is not after_loss
    cwm.kv_tier.l1_is_read = False
    assert await look(cwm, after_loss=after_loss) == []
    assert await proven(cwm)


@pytest.mark.parametrize(
    ("adapters", "comes_from"),
    [(("valkey", "fs_native"), Tier.DISK), (("fs_native", "valkey"), Tier.REDIS)],
)
async def test_what_the_tier_that_is_asked_first_lost_is_stored_again_after_a_loss_only(
    sqlite: Database, adapters: tuple[str, ...], comes_from: Tier
) -> None:
    cwm = gateway(sqlite, FakeEngine(FakeKvTier(adapters=adapters)))
    window = await cwm.window()
    key = await cwm.key(window)
    cwm.kv_tier.lose(key, set(LOWER) - {comes_from})
    (planned,) = await look(cwm, dry_run=True, after_loss=True)
    assert (planned.outcome, planned.detail) == (StepOutcome.PLANNED, f"blocks are left in {comes_from} only")
    assert not await proven(cwm)
    assert await look(cwm) == []
    assert await proven(cwm)
    (done,) = await look(cwm, after_loss=True)
    assert done.outcome is StepOutcome.DONE
    assert all(tiers >= set(LOWER) for tiers in cwm.kv_tier.stored(window.cache_salt).values())
    assert await cwm.at_rest()


@pytest.mark.parametrize("after_loss", [False, True])
async def test_a_window_of_a_model_that_is_not_served_any_more_stands_in_nobodys_way(
    sqlite: Database, *, after_loss: bool
) -> None:
    before = gateway(sqlite)
    await before.window()
    now = gateway(sqlite, FakeEngine(model="other"))
    await now.window("w2", "s2")
    for _ in range(2):
        assert await look(now, 1, after_loss=after_loss) == []
    assert not await proven(now)
    assert await proven(now, "w2")


async def test_a_window_that_another_engine_stored_is_not_read_here(sqlite: Database) -> None:
    await gateway(sqlite).window()
    now = gateway(sqlite, FakeEngine(fingerprint="fp-2"))
    assert await look(now) == []
    assert not await proven(now)
    window = await now.registry.window("acme", "w1")
    assert window is not None
    assert window.durability is Durability.DURABLE
