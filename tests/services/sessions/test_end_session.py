"""Ending a session, against an engine and a cache in memory."""

from __future__ import annotations

from typing import Any

import pytest

from cwm.adapters.sql.database import Database
from cwm.adapters.sql.registry.registry import SqlRegistry
from cwm.domain.errors import SessionNotActiveError
from cwm.domain.session import SessionQuery
from tests.contracts.nouns import NOW
from tests.services.replicas_of import ANN
from tests.services.windows_of import gateway


async def test_a_session_with_a_turn_in_flight_can_be_deleted_once_the_turn_has_ended(
    sqlite: Database,
) -> None:
    cwm = gateway(sqlite)
    await cwm.session()
    with (
        cwm.turns.begin(ANN, "s1"),
        pytest.raises(SessionNotActiveError, match="turn in flight") as refusal,
    ):
        await cwm.end_session(ANN, "s1")
    assert refusal.value.retryable
    await cwm.end_session(ANN, "s1")
    assert await cwm.registry.session("acme", "s1") is None


async def test_a_frozen_session_is_not_deleted_however_often_it_is_asked_for(sqlite: Database) -> None:
    cwm = gateway(sqlite)
    await cwm.window()
    with pytest.raises(SessionNotActiveError, match="delete its windows") as refusal:
        await cwm.end_session(ANN, "s1")
    assert not refusal.value.retryable


@pytest.fixture
def departing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that begins alike ends as soon as it is named."""
    named = SqlRegistry.live_sessions_with_head

    async def last_seen(registry: SqlRegistry, *prefix: Any) -> list[str]:
        found = await named(registry, *prefix)
        for session_id in {*found} - {"s1"}:
            await registry.remove_session("acme", session_id, NOW)
        return found

    monkeypatch.setattr(SqlRegistry, "live_sessions_with_head", last_seen)


@pytest.mark.usefixtures("departing")
async def test_a_session_ends_while_another_that_begins_alike_ends(sqlite: Database) -> None:
    cwm = gateway(sqlite)
    await cwm.session("s1")
    await cwm.session("s2")
    await cwm.end_session(ANN, "s1")
    assert await cwm.registry.sessions("acme", SessionQuery()) == []


@pytest.mark.usefixtures("departing")
async def test_a_window_is_deleted_while_a_session_that_begins_alike_ends(sqlite: Database) -> None:
    cwm = gateway(sqlite)
    await cwm.window("w1", "s1")
    await cwm.session("s2")
    await cwm.delete(ANN, "w1")
    assert await cwm.registry.window("acme", "w1") is None
    assert await cwm.registry.session("acme", "s2") is None
