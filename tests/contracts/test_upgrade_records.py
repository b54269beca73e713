"""What every registry owes: where models are upgraded to, and which of their windows wait for that."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cwm.domain.engine import Tier
from cwm.domain.intent import Debt
from cwm.domain.principal import Principal
from cwm.domain.upgrade import Upgrade, WindowCounts
from cwm.domain.window import Chunk, Retention, Window
from cwm.ports.registry import Registry, StoredChunks
from tests.contracts.nouns import LATER, NOW, a_session, a_window

OLD = a_window("any").identity
NEW = replace(OLD, fingerprint="kv-new", adapter="")
TOKENS = tuple(range(40))
STORED = StoredChunks((Chunk("aa", 10), Chunk("bb", 10)), Tier.DISK, {"disk": 2})
DEBT = Debt("/models/tiny", 1, 16, 39, pinned=True)


async def frozen(registry: Registry, name: str, **more: Any) -> Window:
    session = await registry.add_session(a_session(f"s-{name}"), TOKENS)
    window = a_window(name, session_id=session.id, salt_scope=session.salt_scope, **more)
    intent = await registry.begin_freeze(window, TOKENS, None)
    return await registry.finish_freeze(replace(window, snapshot_id=intent.snapshot_id or ""), STORED, NOW)


async def test_the_last_deployment_that_is_named_counts_and_its_first_time(registry: Registry) -> None:
    first = Upgrade("tiny", OLD, NOW)
    second = Upgrade("tiny", NEW, NOW, Principal("acme", "olga"))
    await registry.begin_upgrade(first)
    await registry.begin_upgrade(replace(first, since=LATER))
    assert await registry.upgrades() == {"tiny": first}
    await registry.begin_upgrade(second)
    assert await registry.upgrades() == {"tiny": second}
    await registry.end_upgrade("tiny")
    await registry.end_upgrade("tiny")
    assert await registry.upgrades() == {}


async def test_guaranteed_windows_of_another_deployment_wait(registry: Registry) -> None:
    waits = await frozen(registry, "waits")
    await frozen(registry, "done", identity=NEW)
    await frozen(registry, "forgotten", retention=Retention.BEST_EFFORT)
    await frozen(registry, "other", model="large")
    upgrade = Upgrade(waits.model, NEW, NOW)
    assert [each.name for each in await registry.windows_to_renew_of_every_tenant(upgrade, 9)] == ["waits"]
    assert await registry.upgraded_windows_of_every_tenant(upgrade) == WindowCounts(done=1, left=1)
    assert await registry.windows_to_renew_of_every_tenant(Upgrade("unheard-of", NEW, NOW), 9) == []


async def test_a_window_that_is_still_being_stored_by_another_deployment_is_left_too(
    registry: Registry,
) -> None:
    session = await registry.add_session(a_session("s"), TOKENS)
    pending = a_window("pending", session_id=session.id, salt_scope=session.salt_scope)
    await registry.begin_freeze(pending, TOKENS, None)
    upgrade = Upgrade(pending.model, NEW, NOW)
    assert await registry.upgraded_windows_of_every_tenant(upgrade) == WindowCounts(done=0, left=1)
    assert await registry.windows_to_renew_of_every_tenant(upgrade, 9) == []


async def test_a_window_changes_its_kv_in_one_step_and_keeps_the_rest(registry: Registry) -> None:
    window = await frozen(registry, "w")
    intent = await registry.begin_renewal(window, "salt-new", DEBT, NOW)
    assert intent is not None
    assert await registry.window("acme", "w") == window
    renewed = replace(window, cache_salt="salt-new", identity=NEW, pinned=True)
    owed = Debt("/models/tiny", 1, 16, 39, pinned=False, hashes=("aa",))
    finished = await registry.finish_renewal(window, renewed, STORED, intent, LATER, None, owed)
    assert finished is not None
    after, debt = finished
    assert (after.cache_salt, after.identity, after.pinned, after.proven_at) == ("salt-new", NEW, True, LATER)
    assert (after.name, after.snapshot_id, after.created_at) == ("w", window.snapshot_id, window.created_at)
    assert await registry.window("acme", "w") == after
    assert debt is not None
    assert [each.id for each in await registry.intents_of_every_tenant()] == [debt.id]
    assert (debt.cache_salt, debt.debt) == (window.cache_salt, owed)
    assert await registry.unreferenced("acme", "salt-new", ["aa"]) == []
    assert await registry.unreferenced("acme", window.cache_salt, ["aa"]) == ["aa"]


async def test_a_window_that_was_changed_meanwhile_is_not_changed_again(registry: Registry) -> None:
    window = await frozen(registry, "w")
    intent = await registry.begin_renewal(window, "salt-new", DEBT, NOW)
    assert intent is not None
    await registry.remove_window(window, NOW)
    renewed = replace(window, cache_salt="salt-new", identity=NEW)
    assert await registry.finish_renewal(window, renewed, STORED, intent, LATER) is None
    assert await registry.begin_renewal(window, "salt-new", DEBT, NOW) is None
    assert [each.id for each in await registry.intents_of_every_tenant()] == [intent.id]
