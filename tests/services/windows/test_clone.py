"""Cloning a window: another name over the same blocks, with a pin of its own."""

from __future__ import annotations

import pytest

from cwm.adapters.sql.database import Database
from cwm.domain.errors import (
    EngineConnectionError,
    StorageQuotaExceededError,
    StorageReadError,
    WindowAlreadyExistsError,
    WindowNotFoundError,
)
from cwm.domain.window import Durability, Retention
from tests.services.replicas_of import ANN, BOB
from tests.services.windows_of import Gateway, gateway


async def test_a_clone_shares_every_block_and_has_a_pin_of_its_own(cwm: Gateway) -> None:
    source = await cwm.window(tags=["a"])
    before = cwm.kv_tier.stored(source.cache_salt)
    clone = await cwm.clone(BOB, "w1", "w2", "a copy")
    assert await cwm.registry.window("acme", "w2") == clone
    assert (clone.parent_window, clone.branch_token) == ("w1", source.token_count)
    assert (clone.owner, clone.description, clone.tags) == (BOB.subject, "a copy", ("a",))
    assert (clone.durability, clone.pinned) == (Durability.DURABLE, True)
    assert await cwm.registry.chunks("acme", "w2") == await cwm.registry.chunks("acme", "w1")
    assert cwm.kv_tier.stored(source.cache_salt) == before
    assert set((await cwm.kv_tier.pins(source.cache_salt)).values()) == {2}
    assert await cwm.at_rest()
    assert (await cwm.events())[0] == ("window_clone", "success")


async def test_a_clone_thaws_when_its_source_is_gone(cwm: Gateway) -> None:
    await cwm.window()
    await cwm.clone(ANN, "w1", "w2")
    await cwm.delete(ANN, "w1", force=True)
    cwm.engine.restart()
    thawed = await cwm.thaw(ANN, "w2", "s2")
    assert not thawed.partial
    assert await cwm.registry.session_tokens("acme", "s2")


async def test_a_clone_kept_as_long_as_there_is_room_has_no_pin(cwm: Gateway) -> None:
    source = await cwm.window()
    clone = await cwm.clone(ANN, "w1", "w2", tags=[], retention=Retention.BEST_EFFORT, ttl_seconds=60)
    assert (clone.pinned, clone.tags, clone.expires_at is not None) == (False, (), True)
    assert set((await cwm.kv_tier.pins(source.cache_salt)).values()) == {1}
    assert await cwm.at_rest()


async def test_a_clone_that_cannot_be_pinned_is_none_and_leaves_no_pin_for_long(cwm: Gateway) -> None:
    await cwm.window()
    cwm.kv_tier.away = True
    with pytest.raises(EngineConnectionError):
        await cwm.clone(ANN, "w1", "w2")
    assert await cwm.registry.window("acme", "w2") is None
    cwm.kv_tier.away = False
    await cwm.reconcile()
    assert await cwm.at_rest()


async def test_what_cannot_be_cloned_is_refused(cwm: Gateway) -> None:
    await cwm.window()
    with pytest.raises(WindowNotFoundError):
        await cwm.clone(ANN, "nobody", "w2")
    with pytest.raises(WindowAlreadyExistsError):
        await cwm.clone(ANN, "w1", "w1")
    await cwm.session("s2", "Another context of its own, and long enough for one block.")
    cwm.kv_tier.away = True
    await cwm.freeze(ANN, "s2", "pending", wait=False)
    await cwm.freeze.settle()
    with pytest.raises(StorageReadError, match="still being stored"):
        await cwm.clone(ANN, "pending", "w2")
    assert await cwm.registry.window("acme", "w2") is None


async def test_no_clone_is_guaranteed_beyond_the_quota(sqlite: Database) -> None:
    """A clone's blocks are its source's, but it promises to keep them."""
    cwm = gateway(sqlite, quota_bytes=3_500)
    await cwm.window("w1", "s1", retention=Retention.BEST_EFFORT)
    await cwm.session("s2", "Another context of its own, and long enough for one block.")
    await cwm.freeze(ANN, "s2", "w2")
    with pytest.raises(StorageQuotaExceededError):
        await cwm.clone(ANN, "w1", "w3", retention=Retention.GUARANTEED)
    assert await cwm.registry.window("acme", "w3") is None
    assert await cwm.at_rest()
