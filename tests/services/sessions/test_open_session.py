"""A new session, on a gateway that has not heard yet what another one did."""

from __future__ import annotations

from cwm.adapters.sql.database import Database
from cwm.adapters.sql.registry.registry import SqlRegistry
from tests.services.replicas_of import ANN
from tests.services.windows_of import gateway


async def test_a_session_is_opened_in_the_scope_in_force_also_where_another_one_is_remembered(
    database: Database, other_replica: SqlRegistry
) -> None:
    cwm = gateway(database)
    assert (await cwm.open_session(ANN, "before")).salt_scope == "tenant:acme"
    await other_replica.retire_scope("acme", "tenant:acme")
    session = await cwm.open_session(ANN, "s")
    assert session.salt_scope == "tenant:acme#1"
    assert await cwm.registry.session("acme", "s") == session
