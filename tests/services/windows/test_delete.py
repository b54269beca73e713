"""Deleting a window: exactly those of its blocks go that nothing else refers to."""

from __future__ import annotations

import asyncio

import pytest

from cwm.adapters.sql.database import Database
from cwm.adapters.sql.vault import Vault
from cwm.domain.errors import (
    EngineConnectionError,
    StorageReadError,
    WindowInUseError,
    WindowNotFoundError,
)
from cwm.domain.session import SessionState
from cwm.ports.kv_tier import PrefixKey
from tests.contracts.nouns import Damage
from tests.fakes.kv_tier import FakeKvTier
from tests.services.replicas_of import ANN, BOB
from tests.services.windows_of import TEXT, Gateway, gateway


async def test_a_deleted_window_is_gone_with_its_tokens_its_blocks_and_its_pins(cwm: Gateway) -> None:
    window = await cwm.window()
    deleted = await cwm.delete(ANN, "w1")
    assert (deleted.window_name, deleted.blocks_deleted, deleted.warning) == ("w1", window.block_count, None)
    assert deleted.space_freed_bytes == window.total_size_bytes
    assert await cwm.registry.window("acme", "w1") is None
    assert cwm.kv_tier.stored(window.cache_salt) == {}
    assert await cwm.kv_tier.pins(window.cache_salt) == {}
    assert await cwm.at_rest()
    (event, *_) = await cwm.audit.events("acme", 1)
    assert (event.event, event.details["blocks_deleted"]) == ("window_delete", window.block_count)


async def test_deleting_anothers_window_leaves_the_session_that_it_was_frozen_from_and_names_it(
    cwm: Gateway,
) -> None:
    window = await cwm.window()
    tokens = await cwm.registry.session_tokens("acme", "s1")
    deleted = await cwm.delete(BOB, "w1")
    assert deleted.session is not None
    assert (deleted.session.id, deleted.session.state) == ("s1", SessionState.EXPIRED)
    (event, *_) = await cwm.audit.events("acme", 1)
    assert (event.subject, event.details["session_id"], event.details["session_state"]) == (
        "bob",
        "s1",
        "expired",
    )
    assert await cwm.registry.session_tokens("acme", "s1") == tokens
    again = (await cwm.freeze(ANN, "s1", "w2")).window
    assert (again.token_count, again.block_count) == (window.token_count, window.block_count)
    assert await cwm.at_rest()


async def test_blocks_of_another_window_stay_with_its_pins(cwm: Gateway) -> None:
    window = await cwm.window()
    await cwm.clone(ANN, "w1", "w2")
    before = cwm.kv_tier.stored(window.cache_salt)
    assert (await cwm.delete(ANN, "w1", force=True)).blocks_deleted == 0
    assert cwm.kv_tier.stored(window.cache_salt) == before
    assert set((await cwm.kv_tier.pins(window.cache_salt)).values()) == {1}
    assert await cwm.at_rest()


async def test_only_blocks_of_no_other_window_are_deleted_and_counted(cwm: Gateway) -> None:
    window = await cwm.window()
    await cwm.session("s2", f"{TEXT[:64]} and goes on in its own way, as a window of its own.")
    other = (await cwm.freeze(ANN, "s2", "w2")).window
    deleted = await cwm.delete(ANN, "w1")
    assert (deleted.blocks_deleted, deleted.space_freed_bytes) == (1, window.total_size_bytes // 3)
    hashes = cwm.kv_tier.expected_hashes(await cwm.key(other)) or ()
    assert set(cwm.kv_tier.stored(window.cache_salt)) == set(hashes)
    assert await cwm.at_rest()


async def test_blocks_that_a_live_session_shares_stay_and_those_behind_them_go(cwm: Gateway) -> None:
    await cwm.open_session(ANN, "live")
    await cwm.says("live", f"{TEXT[:64]} and goes on in its own way.")
    window = await cwm.window()
    deleted = await cwm.delete(ANN, "w1")
    assert (window.block_count, deleted.blocks_deleted) == (3, 1)
    key = await cwm.session_key("live")
    assert set(cwm.kv_tier.stored(window.cache_salt)) == set(cwm.kv_tier.expected_hashes(key) or ())


async def test_who_wants_to_keep_the_blocks_gives_back_the_pins_only(cwm: Gateway) -> None:
    window = await cwm.window()
    deleted = await cwm.delete(ANN, "w1", delete_blocks=False)
    assert (deleted.blocks_deleted, deleted.space_freed_bytes) == (0, 0)
    assert len(cwm.kv_tier.stored(window.cache_salt)) == window.block_count
    assert await cwm.kv_tier.pins(window.cache_salt) == {}


async def test_a_window_in_use_is_deleted_with_force_only_and_the_refusal_names_who_uses_it(
    cwm: Gateway,
) -> None:
    await cwm.window()
    await cwm.thaw(ANN, "w1", "thawed")
    await cwm.clone(ANN, "w1", "copy")
    with pytest.raises(WindowInUseError) as refused:
        await cwm.delete(ANN, "w1")
    assert (refused.value.context["windows"], refused.value.context["sessions"]) == (["copy"], ["thawed"])
    assert await cwm.registry.window("acme", "w1") is not None
    await cwm.delete(ANN, "w1", force=True)
    assert await cwm.registry.window("acme", "w1") is None
    assert (await cwm.says("thawed", " and on")).cached_tokens > 0


async def test_a_window_that_is_being_stored_is_not_deleted_even_with_force(cwm: Gateway) -> None:
    await cwm.session()
    cwm.engine.gate = asyncio.Event()
    await cwm.freeze(ANN, "s1", "w1", wait=False)
    with pytest.raises(StorageReadError, match="still being stored"):
        await cwm.delete(ANN, "w1", force=True)
    cwm.engine.gate.set()
    await cwm.freeze.settle()
    await cwm.delete(ANN, "w1")
    assert await cwm.at_rest()


async def test_nothing_is_removed_while_lmcache_cannot_be_told(cwm: Gateway) -> None:
    window = await cwm.window()
    cwm.kv_tier.away = True
    with pytest.raises(EngineConnectionError):
        await cwm.delete(ANN, "w1")
    assert await cwm.registry.window("acme", "w1") == window


class AwayWhenItMatters:
    """A cache that answers who it is and goes away when something is to be given back."""

    def __init__(self, tier: FakeKvTier) -> None:
        self._tier = tier

    def __getattr__(self, name: str) -> object:
        return getattr(self._tier, name)

    async def unpin(self, prefix: PrefixKey) -> int:
        self._tier.away = True
        return await self._tier.unpin(prefix)


async def test_what_lmcache_could_not_be_told_in_the_end_goes_when_it_is_back(sqlite: Database) -> None:
    cwm = gateway(sqlite)
    window = await cwm.window()
    leaving = gateway(sqlite, cwm.engine, kv_tier=AwayWhenItMatters(cwm.kv_tier))  # type: ignore[arg-type]
    deleted = await leaving.delete(ANN, "w1")
    assert "stopped answering" in (deleted.warning or "")
    assert await cwm.registry.window("acme", "w1") is None
    cwm.kv_tier.away = False
    await cwm.reconcile()
    assert cwm.kv_tier.stored(window.cache_salt) == {}
    assert await cwm.at_rest()


async def test_a_window_whose_tokens_are_damaged_can_be_deleted(database: Database, damage: Damage) -> None:
    cwm = gateway(database)
    window = await cwm.window()
    await damage("snapshots")
    deleted = await cwm.delete(ANN, "w1")
    assert deleted.blocks_deleted == window.block_count
    assert await cwm.registry.window("acme", "w1") is None


async def test_a_window_whose_key_is_lost_can_be_deleted(database: Database) -> None:
    cwm = gateway(database, vault=Vault(["lost".ljust(32, "-")]))
    window = await cwm.window()
    without = gateway(database, cwm.engine)
    deleted = await without.delete(ANN, "w1")
    assert deleted.blocks_deleted == window.block_count
    await without.end_session(ANN, "s1")
    assert await without.registry.session("acme", "s1") is None


async def test_what_is_not_there_cannot_be_deleted(cwm: Gateway) -> None:
    with pytest.raises(WindowNotFoundError):
        await cwm.delete(ANN, "nobody")
