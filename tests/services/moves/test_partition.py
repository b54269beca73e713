"""A gateway that does not reach one engine, while another gateway reaches all of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from cwm.adapters.sql.database import Database
from cwm.domain.engine_health import GONE_AFTER
from cwm.domain.errors import EngineConnectionError
from cwm.domain.turn import TurnQuery
from tests.services.fleet_of import Fleet, together, turns_of
from tests.services.moves.mortal import Life, Mortal
from tests.services.replicas_of import ANN, OPERATOR
from tests.services.windows_of import TEXT, Gateway


@dataclass(slots=True)
class Way(Life):
    """From a gateway to an engine. While it is ``cut`` nothing gets through, answers neither."""

    cut: bool = False

    def require(self) -> None:
        if self.cut:
            raise EngineConnectionError("vLLM does not answer.")


@dataclass(frozen=True, slots=True)
class Partition:
    """``near`` reaches all engines, ``far`` those to which its way is not cut."""

    fleet: Fleet
    far: Gateway
    ways: dict[str, Way]

    @property
    def near(self) -> Gateway:
        return self.fleet.cwm

    async def cuts_off(self, *engines: str, seen: bool = True) -> None:
        """``seen``: far has looked often enough to know."""
        for name in engines:
            self.ways[name].cut = True
        if seen:
            await self.looked_at()

    async def heals(self) -> None:
        for way in self.ways.values():
            way.cut = False
        await self.looked_at()

    async def looked_at(self) -> None:
        for gateway in (self.near, self.far):
            for name in self.ways:
                for _ in range(GONE_AFTER):
                    await gateway.directory.look_at(name, gateway.clock)


@pytest.fixture
async def partition(fleet: Fleet, sqlite: Database) -> AsyncIterator[Partition]:
    ways = {name: Way() for name in fleet.engines}
    engines: Any = {name: Mortal(engine, name, ways[name]) for name, engine in fleet.engines.items()}
    far = fleet.another_gateway(sqlite, served=together(engines))
    opened = Partition(fleet, far, ways)
    await opened.looked_at()
    await fleet.begins("s1")
    yield opened
    await far.settle()


async def test_a_session_goes_on_elsewhere_with_its_kv_and_both_gateways_meet_there(
    partition: Partition,
) -> None:
    fleet, near, far = partition.fleet, partition.near, partition.far
    await partition.cuts_off("one")
    answer = await far.says("s1", " On.")
    assert answer.cached_tokens >= near.kv_tier.chunk_size
    assert await fleet.engine_of("s1") == "two"
    await near.says("s1", " And on.")
    await partition.heals()
    for gateway in (far, near):
        await gateway.says("s1", " And on.")
    assert await fleet.engine_of("s1") == "two", "neither takes it back"
    assert (turns_of(fleet.one), turns_of(fleet.two)) == (1, 4)


async def test_the_conversation_is_the_one_that_it_would_have_been_without_a_partition(
    partition: Partition,
) -> None:
    near, far = partition.near, partition.far
    await partition.fleet.begins("like")
    for gateway, say in ((far, " On."), (near, " And on."), (far, " To its end.")):
        await partition.heals() if gateway is near else await partition.cuts_off("one")
        assert (await gateway.says("s1", say)).text == (await near.says("like", say)).text
    contexts = [await near.registry.session_tokens("acme", each) for each in ("s1", "like")]
    assert contexts[0] == contexts[1]


async def test_before_its_gateway_has_seen_that_the_engine_is_away_a_turn_is_taken_by_another_once(
    partition: Partition,
) -> None:
    fleet, near, far = partition.fleet, partition.near, partition.far
    await far.directory.identity("tiny", "one")
    await partition.cuts_off("one", seen=False)
    answer = await far.says("s1", " On.")
    assert answer.cached_tokens >= near.kv_tier.chunk_size
    assert (await fleet.engine_of("s1"), turns_of(fleet.one), turns_of(fleet.two)) == ("two", 1, 1)
    assert len(await near.registry.turns("acme", "s1", TurnQuery())) == 2
    await near.says("s1", " And on.")
    assert await fleet.engine_of("s1") == "two"


async def test_a_session_whose_first_turn_was_taken_by_another_engine_stays_there(
    partition: Partition,
) -> None:
    fleet, far = partition.fleet, partition.far
    await far.open_session(ANN, "new")
    for name in ("one", "two"):
        await far.directory.identity("tiny", name)
    await partition.cuts_off("one", seen=False)
    for _ in range(2):
        await far.says("new", TEXT)
        assert await fleet.engine_of("new") == "two"


async def test_a_gateway_that_reaches_no_engine_refuses_and_leaves_the_session_where_it_is(
    partition: Partition,
) -> None:
    fleet, near, far = partition.fleet, partition.near, partition.far
    await partition.cuts_off(*partition.ways)
    with pytest.raises(EngineConnectionError) as refused:
        await far.says("s1", " On.")
    assert refused.value.code == "CWM-5001"
    await near.says("s1", " On.")
    await partition.heals()
    await far.says("s1", " And on.")
    assert (await fleet.engine_of("s1"), turns_of(fleet.one)) == ("one", 3)


async def test_what_each_gateway_says_of_the_engines_is_what_it_sees_and_the_same_afterwards(
    partition: Partition,
) -> None:
    async def states(gateway: Gateway) -> dict[str, bool]:
        return {state.name: state.is_up for state in await gateway.survey(OPERATOR)}

    await partition.cuts_off("one")
    assert await states(partition.near) == {"one": True, "two": True, "other": True}
    assert await states(partition.far) == {"one": False, "two": True, "other": True}
    await partition.heals()
    assert await states(partition.far) == await states(partition.near)


async def test_a_turn_through_the_gateway_that_is_cut_off_waits_for_a_move_by_the_other(
    partition: Partition,
) -> None:
    fleet, near, far = partition.fleet, partition.near, partition.far
    await partition.cuts_off("one")
    await near.directory.identity("tiny", "two")
    await far.directory.identity("tiny", "two")
    fleet.two.gate = asyncio.Event()
    fleet.two.asked.clear()
    move = asyncio.create_task(near.move(ANN, "s1", "two"))
    await fleet.two.asked.wait()
    turn = asyncio.create_task(far.says("s1", " On."))
    fleet.two.gate.set()
    moved = await move
    await turn
    assert moved.blocks_found == moved.blocks_total > 0
    assert (turns_of(fleet.one), turns_of(fleet.two)) == (1, 1)
