"""Which sessions are being spoken to, and who waits for whom."""

from __future__ import annotations

import asyncio

import pytest

from cwm.adapters.local.clock import SystemClock
from cwm.adapters.sql.audit.log import SqlAuditLog
from cwm.adapters.sql.registry.registry import SqlRegistry
from cwm.domain.errors import SessionNotActiveError
from cwm.domain.principal import Principal
from cwm.domain.session import SessionState
from cwm.services.turns.recording.placement import Said
from cwm.services.turns.recording.turns import Answered, Turns
from tests.contracts.nouns import LATER, a_session

ALICE = Principal("acme", "alice")


@pytest.fixture
def turns(registry: SqlRegistry, audit_log: SqlAuditLog) -> Turns:
    return Turns(registry, audit_log, SystemClock())


async def test_a_session_is_in_flight_while_any_turn_of_it_runs(turns: Turns) -> None:
    with turns.begin(ALICE, "s"):
        with turns.begin(ALICE, "s"):
            assert turns.in_flight("acme", "s")
        assert turns.in_flight("acme", "s")
        assert not turns.in_flight("other", "s")
        assert not turns.in_flight("acme", "t")
    assert not turns.in_flight("acme", "s")


async def test_a_turn_that_fails_is_over(turns: Turns) -> None:
    def fail() -> None:
        with turns.begin(ALICE, "s"):
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert not turns.in_flight("acme", "s")


async def test_exclusive_turns_of_a_session_run_one_after_the_other(turns: Turns) -> None:
    running: list[str] = []
    most = 0

    async def turn(name: str, session_id: str) -> None:
        nonlocal most
        async with turns.exclusive(ALICE, session_id):
            running.append(name)
            most = max(most, len(running))
            assert turns.in_flight("acme", session_id)
            await asyncio.sleep(0)
            running.remove(name)

    await asyncio.gather(*(turn(f"t{n}", "s") for n in range(5)))
    assert most == 1
    await asyncio.gather(*(turn(f"t{n}", f"s{n}") for n in range(5)))
    assert most == 5
    assert turns.idle


async def test_a_cancelled_wait_for_a_turn_leaves_nothing_behind(turns: Turns) -> None:
    async def wait() -> None:
        async with turns.exclusive(ALICE, "s"):
            raise AssertionError

    async with turns.exclusive(ALICE, "s"):
        waiting = asyncio.create_task(wait())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert turns.in_flight("acme", "s")
    assert turns.idle
    assert not turns.in_flight("acme", "s")


async def test_a_turn_of_a_session_that_is_gone_is_written_down(
    turns: Turns, registry: SqlRegistry, audit_log: SqlAuditLog
) -> None:
    await registry.add_session(a_session(), ())
    with turns.begin(ALICE, "s1") as turn:
        await turn.ask(a_session(), Said())
        await registry.remove_session("acme", "s1", LATER)
        assert await turn.record(Answered((1, 2, 3), 2)) is None
    (event,) = await audit_log.events("acme", 5)
    assert (event.event, event.outcome, event.session_id) == ("session.turn", "not_recorded", "s1")
    assert event.details["token_count"] == 3


async def test_a_turn_marks_its_session_as_used_when_it_is_asked(turns: Turns, registry: SqlRegistry) -> None:
    await registry.add_session(a_session(), ())
    with turns.begin(ALICE, "s1") as turn:
        await turn.ask(a_session(), Said())
        session = await registry.session("acme", "s1")
    assert session is not None
    assert session.updated_at > a_session().updated_at


async def test_a_turn_of_a_session_that_has_just_expired_does_not_begin(
    turns: Turns, registry: SqlRegistry
) -> None:
    await registry.add_session(a_session(), ())
    assert await registry.expire_session(a_session(), SystemClock().now())
    with turns.begin(ALICE, "s1") as turn:
        for stale in (a_session(), a_session(state=SessionState.EXPIRED)):
            with pytest.raises(SessionNotActiveError):
                await turn.ask(stale, Said())


@pytest.mark.parametrize("revision", [0, None])
async def test_a_turn_is_no_part_of_a_session_that_was_made_again_under_the_same_id(
    turns: Turns, registry: SqlRegistry, audit_log: SqlAuditLog, revision: int | None
) -> None:
    await registry.add_session(a_session(), ())
    with turns.begin(ALICE, "s1") as turn:
        await turn.ask(a_session(), Said())
        await registry.remove_session("acme", "s1", LATER)
        await registry.add_session(a_session(created_at=LATER), ())
        assert await turn.record(Answered((1, 2, 3), 2), revision=revision) is None
    assert await registry.session_tokens("acme", "s1") == ()
    assert [event.outcome for event in await audit_log.events("acme", 5)] == ["not_recorded"]
