"""The store that engines share is full while a session moves."""

from __future__ import annotations

import asyncio

import pytest

from cwm.domain.engine import Tier
from cwm.domain.errors import StorageWriteError
from cwm.domain.verdict import Verification
from tests.fakes.kv_tier import ALL, LOWER
from tests.services.fleet_of import Fleet, turns_of
from tests.services.replicas_of import ANN, OPERATOR

pytestmark = pytest.mark.slow


async def test_a_move_in_which_the_store_becomes_full_is_given_up_and_made_when_there_is_room(
    fleet: Fleet,
) -> None:
    context = await fleet.begins("s1")
    key = await fleet.cwm.session_key("s1")
    for name in ("one", "two"):
        fleet.beside(name).lose(key, ALL, keep=1)
    fleet.one.gate = asyncio.Event()
    fleet.one.asked.clear()
    move = asyncio.create_task(fleet.cwm.move(ANN, "s1", "two"))
    await fleet.one.asked.wait()
    for name in ("one", "two"):
        fleet.beside(name).full.update(LOWER)
    fleet.one.gate.set()
    with pytest.raises(StorageWriteError) as given_up:
        await move
    blocks = len(context) // fleet.cwm.kv_tier.chunk_size
    assert given_up.value.code == "CWM-4001"
    assert given_up.value.context == {"blocks_found": 1, "blocks_total": blocks}
    session = await fleet.session()
    assert (session.engine, session.moving_until) == ("one", None)
    assert ("session_move", "CWM-4001") in await fleet.cwm.events()
    await fleet.cwm.says("s1", " On.")
    assert (turns_of(fleet.one), turns_of(fleet.two)) == (2, 0)
    for name in ("one", "two"):
        fleet.beside(name).full.clear()
    moved = await fleet.cwm.move(ANN, "s1", "two")
    assert moved.blocks_found == moved.blocks_total >= blocks


async def test_what_a_full_redis_refused_reaches_it_with_the_move_that_needs_it_there(fleet: Fleet) -> None:
    for name in ("one", "two"):
        fleet.beside(name).full.add(Tier.REDIS)
    context = await fleet.begins("s1")
    with pytest.raises(StorageWriteError) as given_up:
        await fleet.cwm.move(ANN, "s1", "two")
    assert given_up.value.context["blocks_found"] == 0
    for name in ("one", "two"):
        fleet.beside(name).full.clear()
    moved = await fleet.cwm.move(ANN, "s1", "two")
    assert moved.blocks_found == moved.blocks_total == len(context) // fleet.cwm.kv_tier.chunk_size
    assert (moved.evidence.verification, moved.canary_of) == (Verification.EXACT, "source")


async def test_a_drain_takes_along_what_a_full_redis_had_refused(fleet: Fleet) -> None:
    for name in ("one", "two"):
        fleet.beside(name).full.add(Tier.REDIS)
    await fleet.begins("s1")
    for name in ("one", "two"):
        fleet.beside(name).full.clear()
    drained = await fleet.cwm.drain(OPERATOR, "one")
    assert (drained.moved, drained.stayed) == (1, ())
    answer = await fleet.cwm.says("s1", " On.")
    assert (turns_of(fleet.two), answer.cached_tokens >= fleet.cwm.kv_tier.chunk_size) == (1, True)
