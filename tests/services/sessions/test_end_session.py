"""Ending a session, against an engine and a cache in memory."""

from __future__ import annotations

import pytest

from cwm.adapters.sql.database import Database
from cwm.domain.errors import SessionNotActiveError
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
