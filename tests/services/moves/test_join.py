"""An engine that joins: each gateway finds it by itself and writes nothing down, so one that dies in it leaves nothing behind."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from sqlalchemy import Connection, select

from cwm.adapters.sql.database import Database
from cwm.adapters.sql.registry.registry import SqlRegistry
from cwm.adapters.sql.tables import metadata
from cwm.adapters.vllm.client import VllmEngine
from cwm.settings import Settings, load
from cwm.settings.engine import Engine
from cwm.wiring.engine_list import EngineList
from tests.fakes.engine import FakeEngine
from tests.fakes.kv_tier import several
from tests.services.moves.mortal import DiedError, Life, Mortal
from tests.services.replicas_of import ANN
from tests.services.windows_of import TEXT, Gateway, gateway

ONE, BOTH = ("10.0.0.1",), ("10.0.0.1", "10.0.0.2")
OLD, NEW = (f"pods-{address}" for address in BOTH)


class Listed(Mortal):
    """An engine of the list: what its URL stands for, and the settings that it was made with."""

    def __init__(self, engine: FakeEngine, name: str, life: Life, settings: Engine) -> None:
        super().__init__(engine, name, life)
        self.settings = settings


@dataclass(slots=True)
class FakeList(EngineList):
    """The list of a gateway, whose engines are the fakes at their addresses."""

    engines: dict[str, FakeEngine] = field(default_factory=dict)
    life: Life = field(default_factory=Life)

    def _engine(self, settings: Engine) -> VllmEngine:
        name = "pods-" + settings.vllm_url.removeprefix("http://").partition(":")[0]
        return cast("VllmEngine", Listed(self.engines[name], name, self.life, settings))


@dataclass(frozen=True, slots=True)
class Member:
    """A gateway with its own list of engines."""

    cwm: Gateway
    listed: EngineList

    async def meets(self, *engines: str) -> None:
        """Look the name up, then look at the engines: what a gateway does again and again."""
        await self.listed.look()
        for engine in engines:
            await self.cwm.directory.look_at(engine, self.cwm.clock)

    async def goes_on_from(self, session_id: str, text: str) -> None:
        """The session has one turn that says ``text``: its own, or one that another gateway took."""
        registry = self.cwm.registry
        if await registry.session("acme", session_id) is None:
            await self.cwm.open_session(ANN, session_id)
        if not await registry.session_tokens("acme", session_id):
            await self.cwm.says(session_id, text)

    async def aclose(self) -> None:
        await self.cwm.settle()
        await self.listed.kv_tier.aclose()


@dataclass(slots=True)
class Pods:
    """Engines at the addresses of one name, and the gateways that look it up."""

    database: Database
    settings: Settings
    addresses: Sequence[str] = ONE
    engines: dict[str, FakeEngine] = field(init=False)
    members: list[Member] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.engines = {name: FakeEngine(tier) for name, tier in several(OLD, NEW).items()}

    async def member(self, name: str, life: Life | None = None) -> Member:
        """A gateway that knows the engine that is there, and whose ``life`` begins now."""
        whole, last = life or Life(), life.last if life else None
        whole.last = None
        resolver: Any = Mortal(self, "dns", whole)
        listed = FakeList(self.settings, look_up=resolver.look_up, engines=self.engines, life=whole)
        registry: Any = Mortal(SqlRegistry(self.database, name), "registry", whole)
        cwm = gateway(self.database, self.engines[OLD], name=name, served=listed.fleet, registry=registry)
        listed.directory = cwm.directory
        member = Member(cwm, listed)
        self.members.append(member)
        await member.meets(OLD)
        await cwm.directory.identity("tiny", OLD)
        whole.steps.clear()
        whole.last = last
        return member

    async def look_up(self, _name: str) -> Sequence[str]:
        return self.addresses

    async def engine_of(self, session_id: str) -> str | None:
        session = await SqlRegistry(self.database).session("acme", session_id)
        return session.engine if session else None

    async def rows(self) -> dict[str, list[str]]:
        """All that the registry has, by table."""

        def every(connection: Connection) -> dict[str, list[str]]:
            return {
                table.name: sorted(map(repr, connection.execute(select(table))))
                for table in metadata.sorted_tables
                if table.name != "window_grams"  # an index
            }

        return await self.database.read(every)


@pytest.fixture
async def pods(database: Database, tmp_path: Path) -> AsyncIterator[Pods]:
    (tmp_path / "cwm.yaml").write_text("engines: {pods: {dns: 'vllm.svc:8000'}}")
    opened = Pods(database, load({}, tmp_path / "cwm.yaml"))
    yield opened
    for member in opened.members:
        await member.aclose()


async def test_a_gateway_that_finds_an_engine_writes_nothing_down(pods: Pods) -> None:
    life = Life()
    member = await pods.member("a", life)
    await member.cwm.session("s1")
    before = await pods.rows()
    life.steps.clear()
    pods.addresses = BOTH
    await member.meets(NEW)
    await member.cwm.directory.identity("tiny", NEW)
    assert await member.cwm.directory.candidates("tiny", "acme") == (NEW, OLD)
    assert {step.rpartition(".")[0] for step in life.steps} == {"dns", OLD, NEW}
    assert await pods.rows() == before


@pytest.mark.slow
async def test_a_gateway_killed_at_any_step_of_a_join_leaves_the_engine_and_all_sessions_to_others(
    pods: Pods,
) -> None:
    pods.engines[OLD].busy = (3, 0)
    other = await pods.member("other")
    joined, life = set(), Life()
    for last in itertools.count(1):
        known, new, like, text = f"known{last}", f"new{last}", f"like{last}", f"{last}: {TEXT}"
        await other.cwm.session(known, f"Known {text}")
        life = Life(last)
        dying = await pods.member(f"mortal-{last}", life)
        pods.addresses = BOTH
        if not await is_killed(first_work(dying, known, new, text)):
            break
        joined.add(await pods.engine_of(new))
        await other.meets(OLD, NEW)
        assert await pods.engine_of(known) == OLD, "a session whose engine is there stays"
        await other.cwm.says(known, " On.")
        for session_id in (new, like):
            await other.goes_on_from(session_id, text)
        assert (await other.cwm.says(new, " On.")).text == (await other.cwm.says(like, " On.")).text
        assert await pods.engine_of(like) == NEW, "it has the least work"
        pods.addresses = ONE
        await other.meets(OLD)
    assert {f"{NEW}.health", f"{NEW}.complete", "registry.settle_session"} <= set(life.steps)
    assert joined == {None, NEW}
    assert last > len(set(life.steps))


async def first_work(member: Member, known: str, new: str, text: str) -> None:
    """Find the engine; take the first turn of a new session there, and another of a known one."""
    await member.meets(OLD, NEW)
    await member.cwm.open_session(ANN, new)
    await member.cwm.says(new, text)
    await member.cwm.says(known, " On.")


async def is_killed(work: Coroutine[Any, Any, None]) -> bool:
    try:
        await work
    except DiedError:
        return True
    return False
