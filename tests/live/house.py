"""A registry of a test's own over the real engine, and what has to hold between the two."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from redis.asyncio import Redis

from cwm import settings
from cwm.adapters.sql import schema
from cwm.domain.principal import Principal
from cwm.domain.upkeep import StepOutcome
from cwm.domain.window import Durability, Window, WindowQuery
from cwm.services.kv.prefix import Prefix, fitting
from cwm.wiring.parts import Parts, build_parts
from tests.contracts.nouns import recorded
from tests.live.engine import LiveEngine
from tests.live.talk import words

AGENT = Principal("acme", "agent")


@dataclass(frozen=True, slots=True)
class House:
    """``environ`` is what another process needs to work on the same registry."""

    parts: Parts
    environ: dict[str, str]
    redis: Redis
    disk: Path

    async def session(self, ids: list[int] | None = None) -> tuple[str, list[int]]:
        """A session with that context, of six chunks and a rest where none is given."""
        ids = ids or words(200)
        session_id = f"s_{uuid4().hex[:10]}"
        await self.parts.services.open_session(AGENT, session_id)
        await recorded(
            self.parts.base.registry, "acme", session_id, ids, self.parts.upkeep.reconcile.journal.clock.now()
        )
        return session_id, ids

    async def window(self, ids: list[int] | None = None, **more: Any) -> tuple[str, list[int]]:
        session_id, ids = await self.session(ids)
        name = f"w_{uuid4().hex[:10]}"
        await self.parts.services.freeze(AGENT, session_id, name, **more)
        return name, ids

    async def reconciled(self) -> None:
        steps = await self.parts.upkeep.reconcile()
        assert steps is not None
        assert [step for step in steps if step.outcome is not StepOutcome.DONE] == []
        assert await self.parts.upkeep.reconcile() == []

    async def agree(self) -> None:
        """Registry, pins and chunks say the same, and nobody is at anything."""
        registry, kv_tier = self.parts.base.registry, self.parts.engine_side.kv_tier
        assert await registry.intents_of_every_tenant() == []
        for salt in await registry.salts_of_every_tenant():
            assert await kv_tier.pins(salt) == await registry.pinned_chunks_of_every_tenant(salt)
        for window in await self.windows():
            assert window.durability is Durability.DURABLE
            assert await self.is_whole(window)

    async def windows(self) -> list[Window]:
        return (await self.parts.base.registry.windows("acme", WindowQuery(limit=100))).windows

    async def is_whole(self, window: Window) -> bool:
        snapshot = await self.parts.base.registry.snapshot(window.tenant, window.snapshot_id)
        prefix = Prefix(fitting(snapshot.token_ids, window.identity), window.cache_salt, window.identity)
        await self.parts.engine_side.kv_tier.drop_l1(prefix.key)
        back = await self.parts.engine_side.kv_tier.prefetch(prefix.key)
        return back.complete and back.total == window.block_count

    async def stored(self, hashes: list[str]) -> int:
        """How many copies of these chunks the lower tiers hold."""
        in_redis = [key.decode() async for key in self.redis.scan_iter(count=1000)]
        on_disk = [path.name for path in self.disk.glob("*.data")]
        return sum(any(name in stored for name in hashes) for stored in [*in_redis, *on_disk])


@asynccontextmanager
async def house(engine: LiveEngine, folder: Path, **more: str) -> AsyncIterator[House]:
    """``more`` are further ``CWM_*`` variables."""
    environ = {
        "CWM_TENANT": "acme",
        "CWM_DB_PATH": str(folder / "cwm.db"),
        "CWM_SECRET_FILE": str(folder / "secret"),
        "CWM_VLLM_URL": engine.vllm_url,
        "CWM_LMCACHE_URL": engine.lmcache_url,
        "CWM_COORDINATOR_URL": engine.coordinator_url,
        "CWM_THAW_PLAN": "load",
        **more,
    }
    loaded = settings.load(environ)
    await schema.upgrade(loaded.database.url())
    parts = build_parts(loaded)
    async with parts.close(), Redis.from_url(engine.redis_url) as redis:
        yield House(parts, environ, redis, engine.storage_path / "kv")
        await parts.services.freeze.settle()
        await parts.services.thaw.planner.settle()
