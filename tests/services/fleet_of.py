"""Two engines of one deployment and one of another model, each with its own LMCache server over shared tiers, behind a gateway."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from cwm.adapters.sql.database import Database
from cwm.adapters.vllm.fleet import VllmFleet
from cwm.domain.engine_health import GONE_AFTER
from cwm.domain.prefix import TokenIds
from cwm.domain.session import Session
from tests.fakes.engine import FakeEngine
from tests.fakes.kv_tier import FakeKvTier, several
from tests.services.replicas_of import ANN
from tests.services.windows_of import TEXT, Gateway, gateway


@dataclass(frozen=True, slots=True)
class Fleet:
    engines: dict[str, FakeEngine]
    cwm: Gateway

    @property
    def one(self) -> FakeEngine:
        return self.engines["one"]

    @property
    def two(self) -> FakeEngine:
        return self.engines["two"]

    def beside(self, engine: str) -> FakeKvTier:
        return self.engines[engine].kv_tier

    async def session(self, session_id: str = "s1") -> Session:
        session = await self.cwm.registry.session("acme", session_id)
        assert session is not None
        return session

    async def begins(self, session_id: str = "s1", text: str = TEXT) -> TokenIds:
        """A session of one turn on the first engine, wherever others would be placed; its context."""
        session = await self.cwm.open_session(ANN, session_id)
        await self.cwm.registry.settle_session(session, "one", None)
        await self.cwm.says(session_id, text)
        while await self.one.kv_tier.storing():
            pass
        return await self.cwm.registry.session_tokens("acme", session_id)

    async def engine_of(self, session_id: str = "s1") -> str | None:
        return (await self.session(session_id)).engine

    async def lose(self, name: str) -> None:
        self.engines[name].away = True
        for _ in range(GONE_AFTER):
            await self.cwm.directory.look_at(name, self.cwm.clock)

    def another_gateway(self, database: Database, name: str = "other", **more: Any) -> Gateway:
        return gateway(database, self.one, name=name, **{"served": together(self.engines), **more})


def fleet(database: Database, **more: Any) -> Fleet:
    servers = several("one", "two", "other")
    engines = {
        "one": FakeEngine(servers["one"]),
        "two": FakeEngine(servers["two"]),
        "other": FakeEngine(servers["other"], model="large", root="/models/large", fingerprint="fp-3"),
    }
    return Fleet(engines, gateway(database, engines["one"], served=together(engines), **more))


def together(engines: dict[str, FakeEngine]) -> VllmFleet:
    return VllmFleet(cast("Any", engines))


def turns_of(engine: FakeEngine) -> int:
    """The turns that an engine was asked for."""
    return sum(request.max_tokens > 4 for request in engine.requests)
