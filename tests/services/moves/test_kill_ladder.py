"""A gateway that is killed between any two steps of a move or a drain leaves each session on one engine, and whole."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Coroutine
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from cwm.adapters.sql.database import Database
from cwm.domain.engine import Tier
from tests.services.fleet_of import Fleet
from tests.services.fleet_of import fleet as a_fleet
from tests.services.moves.mortal import DiedError, Life, mortal_gateway
from tests.services.replicas_of import ANN, OPERATOR
from tests.services.windows_of import TEXT

pytestmark = pytest.mark.slow

LEASE = timedelta(seconds=15)
OVER = timedelta(seconds=-1)


@pytest.fixture
async def fleet(database: Database) -> AsyncIterator[Fleet]:
    """Whose gateway outlives the one that is killed, and waits for no move."""
    opened = a_fleet(database)
    generate = opened.cwm.generate
    generate.place = replace(generate.place, patience_seconds=0)
    yield opened
    await opened.cwm.settle()


async def is_whole(fleet: Fleet, session_id: str, text: str) -> None:
    """It is on one engine, held for no longer than a lease, and goes on as it would have without a move."""
    session = await fleet.session(session_id)
    assert session.engine in {"one", "two"}
    if session.moving_until is not None:
        assert session.moving_until <= datetime.now(UTC) + LEASE
    context = await fleet.cwm.registry.session_tokens("acme", session_id)
    await fleet.begins(f"like-{session_id}", text)
    assert await fleet.cwm.registry.session_tokens("acme", f"like-{session_id}") == context
    expected = (await fleet.cwm.says(f"like-{session_id}", " On.")).text
    assert (await fleet.cwm.says(session_id, " On.")).text == expected


async def killed(operation: Coroutine[Any, Any, object]) -> bool:
    """Whether its gateway died in it; where it has fewer steps than the gateway's life it ends."""
    try:
        await operation
    except DiedError:
        return True
    return False


async def lease_ends(fleet: Fleet, session_id: str) -> None:
    session = await fleet.session(session_id)
    if session.moving_until is not None:
        await fleet.cwm.registry.hold_session(session, OVER, session.moving_until)


async def test_a_move_killed_at_any_step_leaves_the_session_on_one_engine(
    fleet: Fleet, database: Database
) -> None:
    await fleet.begins("s0", f"0: {TEXT}")
    whole = Life()
    await mortal_gateway(database, fleet, whole).move(ANN, "s0", "two")
    assert {
        "registry.hold_session",
        "one.complete",
        "lmcache.storing",
        "lmcache.prefetch",
        "two.complete",
        "registry.settle_session",
    } <= set(whole.steps)
    places = set()
    for last in itertools.count(1):
        session_id, text = f"s{last}", f"{last}: {TEXT}"
        await fleet.begins(session_id, text)
        await fleet.cwm.move(ANN, session_id, "one")
        if not await killed(mortal_gateway(database, fleet, Life(last)).move(ANN, session_id, "two")):
            break
        places.add(await fleet.engine_of(session_id))
        await is_whole(fleet, session_id, text)
        await lease_ends(fleet, session_id)
        back = "one" if await fleet.engine_of(session_id) == "two" else "two"
        again = await fleet.cwm.move(ANN, session_id, back)
        assert again.blocks_found == again.blocks_total > 0
        assert (await fleet.session(session_id)).moving_until is None
    assert places == {"one", "two"}
    assert last > len(set(whole.steps))


async def begins_refused(fleet: Fleet, session_id: str, text: str) -> None:
    """A session on the first engine, whose blocks a full Redis refused; it has room now."""
    for name in ("one", "two"):
        fleet.beside(name).full.add(Tier.REDIS)
    await fleet.begins(session_id, text)
    for name in ("one", "two"):
        fleet.beside(name).full.clear()


async def test_a_move_that_stores_what_a_full_redis_refused_may_be_killed_at_any_step_too(
    fleet: Fleet, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each look at a directory that lags would be a step.
    monkeypatch.setattr("cwm.services.kv.store._DIRECTORY_SECONDS", 0)
    whole = Life()
    await begins_refused(fleet, "s0", f"0: {TEXT}")
    await mortal_gateway(database, fleet, whole).move(ANN, "s0", "two")
    assert "lmcache.refill" in whole.steps
    places = set()
    for last in itertools.count(whole.steps.index("lmcache.drop_l1")):
        session_id, text = f"s{last}", f"{last}: {TEXT}"
        await begins_refused(fleet, session_id, text)
        if await fleet.engine_of(session_id) != "one":
            await fleet.cwm.move(ANN, session_id, "one")
        if not await killed(mortal_gateway(database, fleet, Life(last)).move(ANN, session_id, "two")):
            break
        places.add(await fleet.engine_of(session_id))
        await is_whole(fleet, session_id, text)
        await lease_ends(fleet, session_id)
        back = "one" if await fleet.engine_of(session_id) == "two" else "two"
        again = await fleet.cwm.move(ANN, session_id, back)
        assert again.blocks_found == again.blocks_total > 0
    assert places == {"one", "two"}


async def test_a_drain_killed_at_any_step_is_ended_by_another_gateway(
    fleet: Fleet, database: Database
) -> None:
    texts = {each: f"{each}: {TEXT}" for each in ("a", "b")}
    for session_id, text in texts.items():
        await fleet.begins(session_id, text)
    whole = Life()
    await mortal_gateway(database, fleet, whole).drain(OPERATOR, "one")
    assert {"registry.drain_engine", "registry.settle_session"} <= set(whole.steps)
    await fleet.cwm.drain.undo(OPERATOR, "one")
    for last in itertools.count(1):
        for session_id in texts:
            await fleet.cwm.move(ANN, session_id, "one")
        dying = mortal_gateway(database, fleet, Life(last))
        if not await killed(dying.drain(OPERATOR, "one")):
            break
        await asyncio.gather(dying.move.settle(), return_exceptions=True)
        for session_id in texts:
            assert await fleet.engine_of(session_id) in {"one", "two"}
            await fleet.cwm.says(session_id, " On.")
            await lease_ends(fleet, session_id)
        drained = await fleet.cwm.drain(OPERATOR, "one")
        assert not drained.stayed
        assert {await fleet.engine_of(each) for each in texts} == {"two"}
        await fleet.cwm.drain.undo(OPERATOR, "one")
    assert last > len(set(whole.steps))
