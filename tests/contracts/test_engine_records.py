"""What every registry owes: which engine serves a session, which move holds it, which engines are drained."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from cwm.domain.session import Session, SessionState
from cwm.ports.registry import Registry
from tests.contracts.nouns import LATER, NOW, a_session

LEASE = timedelta(seconds=30)
OVER = timedelta(seconds=-1)


async def a_served_session(registry: Registry, session_id: str = "s1", engine: str = "one") -> Session:
    return await registry.add_session(a_session(session_id, token_count=0, engine=engine), ())


async def test_a_session_has_one_engine_whoever_places_it(registry: Registry) -> None:
    session = await a_served_session(registry)
    wanted = ("two", "three", "four")
    agreed = await asyncio.gather(*(registry.settle_session(session, name, "one") for name in wanted))
    assert len(set(agreed)) == 1
    assert agreed[0] in wanted


async def test_one_move_at_a_time_holds_a_session(registry: Registry) -> None:
    session = await a_served_session(registry)
    holds = await asyncio.gather(*(registry.hold_session(session, LEASE) for _ in range(4)))
    held = [until for until in holds if until is not None]
    assert len(held) == 1
    read = await registry.session("acme", "s1")
    assert read is not None
    assert read.moving_until == held[0]


async def test_a_hold_goes_on_for_whoever_has_it_and_ends_when_it_is_released(registry: Registry) -> None:
    session = await a_served_session(registry)
    until = await registry.hold_session(session, LEASE)
    assert until is not None
    longer = await registry.hold_session(session, 2 * LEASE, until)
    assert longer is not None
    assert longer > until
    assert await registry.hold_session(session, LEASE, until) is None
    await registry.release_session(session, until)
    assert await registry.hold_session(session, LEASE) is None
    await registry.release_session(session, longer)
    assert await registry.hold_session(session, LEASE) is not None


async def test_a_hold_lasts_no_longer_than_its_lease(registry: Registry) -> None:
    session = await a_served_session(registry)
    assert await registry.hold_session(session, OVER) is not None
    assert await registry.hold_session(session, LEASE) is not None


async def test_a_session_that_went_elsewhere_is_not_held_and_no_move_holds_it_there(
    registry: Registry,
) -> None:
    session = await a_served_session(registry)
    await registry.hold_session(session, LEASE)
    assert await registry.settle_session(session, "two", "one") == "two"
    moved = await registry.session("acme", "s1")
    assert moved is not None
    assert (moved.engine, moved.moving_until) == ("two", None)
    assert await registry.hold_session(session, LEASE) is None
    assert await registry.hold_session(moved, LEASE) is not None


async def test_an_engine_serves_the_live_sessions_that_were_placed_on_it(registry: Registry) -> None:
    await a_served_session(registry, "s1")
    await registry.add_session(a_session("s2", "other", token_count=0, engine="one"), ())
    await a_served_session(registry, "s3", "two")
    ended = a_session("s4", token_count=0, engine="one", state=SessionState.EXPIRED)
    await registry.add_session(ended, ())
    served = await registry.served_sessions_of_every_tenant("one", 10)
    assert {(session.tenant, session.id) for session in served} == {("acme", "s1"), ("other", "s2")}
    assert len(await registry.served_sessions_of_every_tenant("one", 1)) == 1
    assert await registry.session_counts_of_every_tenant() == {"one": 2, "two": 1}
    assert [session.id for session in await registry.served_sessions("other", "one", 10)] == ["s2"]
    assert (await registry.session_counts("acme"), await registry.session_counts("other")) == (
        {"one": 1, "two": 1},
        {"one": 1},
    )


async def test_a_drain_lasts_until_it_is_undone(registry: Registry) -> None:
    await registry.drain_engine("one", NOW)
    await registry.drain_engine("one", LATER)
    assert await registry.drained_engines() == {"one": NOW}
    await registry.undo_drain("one")
    await registry.undo_drain("one")
    assert await registry.drained_engines() == {}
