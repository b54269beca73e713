"""Whatever the parts around it lose, a gateway brings its windows back and its pins in order."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from redis.exceptions import OutOfMemoryError

from cwm.domain.errors import CwmError
from cwm.domain.intent import Debt
from cwm.domain.session import SessionState
from cwm.domain.upkeep import StepOutcome
from cwm.domain.window import Durability, Window
from cwm.services.kv.prefix import Prefix, fitting
from tests import postgres
from tests.live.engine import LiveEngine
from tests.live.house import AGENT, House, house
from tests.live.talk import words

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]


@pytest.fixture
async def home(live_engine: LiveEngine, tmp_path: Path) -> AsyncIterator[House]:
    async with house(live_engine, tmp_path) as opened:
        yield opened


async def record(home: House, name: str) -> Window:
    window = await home.parts.base.registry.window("acme", name)
    assert window is not None
    return window


async def lose_files(home: House, window: Window) -> None:
    for chunk in await home.parts.base.registry.chunks(window.tenant, window.name):
        for path in home.disk.glob(f"*{chunk.hash}*"):
            path.unlink()


async def in_redis(home: House, window: Window) -> int:
    """How many of its blocks."""
    keys = [key.decode() async for key in home.redis.scan_iter(count=1000)]
    chunks = await home.parts.base.registry.chunks(window.tenant, window.name)
    return sum(any(chunk.hash in key for key in keys) for chunk in chunks)


async def actions(home: House) -> list[str]:
    steps = await home.parts.upkeep.reconcile()
    assert steps is not None
    assert {step.outcome for step in steps} <= {StepOutcome.DONE}
    return [step.action for step in steps]


@asynccontextmanager
async def redis_set(home: House, values: dict[str, str]) -> AsyncIterator[None]:
    before = {name: str((await home.redis.config_get(name))[name]) for name in values}
    try:
        for name, value in values.items():
            await home.redis.config_set(name, value)
        yield
    finally:
        for name, value in before.items():
            await home.redis.config_set(name, value)


async def test_a_flushed_redis_costs_nothing_while_the_disk_has_its_copy(home: House) -> None:
    await home.window()
    await home.redis.flushall()
    assert await actions(home) == []
    await home.agree()


async def test_after_a_loss_what_only_the_disk_still_has_is_stored_into_redis_again(home: House) -> None:
    name, _ = await home.window()
    kept = await record(home, name)
    await home.redis.flushall()
    patrol = partial(home.parts.upkeep.reconcile.patrol, 100, datetime.max.replace(tzinfo=UTC))
    assert await patrol(dry_run=False) == []
    planned = await patrol(dry_run=True, after_loss=True)
    assert [(step.action, step.subject, step.outcome) for step in planned] == [
        ("store_again", name, StepOutcome.PLANNED)
    ]
    assert await in_redis(home, kept) == 0
    done = await patrol(dry_run=False, after_loss=True)
    assert [(step.subject, step.outcome) for step in done] == [(name, StepOutcome.DONE)]
    assert await in_redis(home, kept) == kept.block_count
    assert await patrol(dry_run=False, after_loss=True) == []
    await home.agree()


async def test_a_window_that_every_tier_lost_is_stored_again(home: House) -> None:
    name, ids = await home.window()
    lost = await record(home, name)
    await home.redis.flushall()
    await lose_files(home, lost)
    dry = await home.parts.upkeep.reconcile(dry_run=True)
    assert dry is not None
    assert [(step.action, step.subject, step.outcome) for step in dry] == [
        ("store_again", name, StepOutcome.PLANNED)
    ]
    assert await actions(home) == ["store_again"]
    await home.agree()
    snapshot = await home.parts.base.registry.snapshot("acme", lost.snapshot_id)
    assert snapshot.token_ids == tuple(ids)
    assert not (await home.parts.services.thaw(AGENT, name)).partial


async def test_a_window_frozen_while_redis_is_full_is_on_disk_and_whole(home: House) -> None:
    async with redis_set(home, {"maxmemory-policy": "noeviction", "maxmemory": "1"}):
        name, _ = await home.window()
        assert (await record(home, name)).tiers == {"cpu": 6, "disk": 6}
    assert await actions(home) == []
    await home.agree()


async def test_a_redis_that_evicts_loses_no_window(home: House) -> None:
    name, _ = await home.window()
    lost = await record(home, name)
    async with redis_set(home, {"maxmemory-policy": "allkeys-lru", "maxmemory": "1"}):
        # Each command makes it evict, until nothing is left and it says that its memory is full.
        with suppress(OutOfMemoryError):
            while [key async for key in home.redis.scan_iter(f"*{lost.cache_salt}")]:
                await home.redis.set("cwm-test", "more")
    await lose_files(home, lost)
    assert await actions(home) == ["store_again"]
    await home.agree()


async def test_a_coordinator_that_lost_its_state_is_told_every_pin_again(
    home: House, live_engine: LiveEngine
) -> None:
    base = words(128)
    await home.window([*base, *words(40)])
    name, _ = await home.window([*base, *words(80)])
    await home.parts.services.clone(AGENT, name, "twin")
    salt = (await record(home, name)).cache_salt
    state = live_engine.storage_path / "coordinator"
    with live_engine.held_down("coordinator"):
        _forget(state / "metadata.json")
    assert await home.parts.engine_side.kv_tier.pins(salt) == {}
    dry = await home.parts.upkeep.reconcile(dry_run=True)
    assert dry is not None
    assert {(step.action, step.outcome) for step in dry} == {("pin", StepOutcome.PLANNED)}
    assert await home.parts.engine_side.kv_tier.pins(salt) == {}
    assert set(await actions(home)) == {"pin"}
    await home.agree()


async def test_pins_that_nobody_has_are_released(home: House) -> None:
    name, ids = await home.window()
    window = await record(home, name)
    prefix = Prefix(fitting(tuple(ids), window.identity), window.cache_salt, window.identity)
    await home.parts.engine_side.kv_tier.pin(prefix.key)
    assert await actions(home) == ["unpin"]
    await home.agree()


async def test_a_restarted_lmcache_has_every_window(home: House, live_engine: LiveEngine) -> None:
    await home.window()
    live_engine.kill("lmcache")
    await asyncio.to_thread(live_engine.wait_ready)
    assert await actions(home) == []
    await home.agree()


async def test_what_cannot_be_done_while_the_coordinator_is_away_is_done_when_it_is_back(
    home: House, live_engine: LiveEngine
) -> None:
    name, _ = await home.window()
    window = await record(home, name)
    hashes = [chunk.hash for chunk in await home.parts.base.registry.chunks("acme", name)]
    owed = await home.parts.base.registry.remove_window(window, window.created_at, _debt(window, hashes))
    assert owed is not None
    with live_engine.held_down("coordinator"):
        assert not await home.parts.upkeep.reconcile.release(owed)
        steps = await home.parts.upkeep.reconcile()
        assert steps is not None
        assert {step.outcome for step in steps} == {StepOutcome.POSTPONED}
    assert "release" in await actions(home)
    await home.agree()
    assert await home.stored(hashes) == 0


async def test_a_freeze_outlives_a_postgres_that_dies_in_its_last_transaction(
    live_engine: LiveEngine, fragile_postgres: postgres.Server, tmp_path: Path
) -> None:
    url = fragile_postgres.url.replace("+asyncpg", "") + "/postgres"
    async with house(live_engine, tmp_path, CWM_DATABASE_URL=url) as home:
        session, ids = await home.session()
        freeze = asyncio.create_task(_outcome(home, session, "w"))
        async with connected(url) as blocker, connected(url) as looker:
            await _until(looker, "SELECT count(*) FROM windows")
            await blocker.execute("BEGIN; SELECT * FROM windows FOR UPDATE")
            await _until(looker, "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
            await asyncio.to_thread(fragile_postgres.stop)
            # Started any sooner, it might be back in time to undo the freeze.
            refused = await freeze
            await asyncio.to_thread(fragile_postgres.start)
        assert isinstance(refused, CwmError)
        assert refused.code == "CWM-4001"

        async with asyncio.timeout(60):
            # The first call may meet a connection of before the restart.
            await home.parts.upkeep.reconcile()
            while await home.parts.base.registry.intents_of_every_tenant():
                await home.parts.upkeep.reconcile()
        await home.agree()
        assert (await record(home, "w")).durability is Durability.DURABLE
        kept = await home.parts.base.registry.session("acme", session)
        assert kept is not None
        assert kept.state is SessionState.FROZEN
        assert await home.parts.base.registry.session_tokens("acme", session) == tuple(ids)


async def _outcome(home: House, session: str, name: str) -> Any:
    try:
        return await home.parts.services.freeze(AGENT, session, name)
    except CwmError as refused:
        return refused


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[asyncpg.Connection]:
    """Closed without a word: the server may be gone by then."""
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        connection.terminate()


async def _until(connection: asyncpg.Connection, query: str) -> None:
    async with asyncio.timeout(60):
        while not await connection.fetchval(query):
            pass


def _forget(metadata: Path) -> None:
    """What it keeps through a crash; what it has in memory is gone already."""
    assert json.loads(metadata.read_text())
    metadata.unlink()


def _debt(window: Window, hashes: list[str]) -> Debt:
    chunk_size = window.identity.chunk_size or 1
    return Debt(window.identity.root, 1, chunk_size, window.token_count, pinned=True, hashes=tuple(hashes))
