"""A new session, on a gateway that has not heard yet what another one did."""

from __future__ import annotations

from typing import Any, cast

from cwm.adapters.local.clock import SystemClock
from cwm.adapters.memory.changes import InProcessChanges
from cwm.adapters.sql.audit.log import SqlAuditLog
from cwm.adapters.sql.registry.registry import SqlRegistry
from cwm.adapters.telemetry.prometheus import PrometheusMeter
from cwm.domain.engine import CacheScope, EngineIdentity
from cwm.domain.principal import Principal
from cwm.services.audit.journal import Journal
from cwm.services.sessions.open_session import OpenSession
from cwm.services.sessions.salt_scopes import Scopes
from tests.contracts.nouns import IDENTITY


class OneEngine:
    async def identity(self, model: str | None = None) -> EngineIdentity:
        return IDENTITY


async def test_a_session_is_opened_in_the_scope_in_force_also_where_another_one_is_remembered(
    registry: SqlRegistry, other_replica: SqlRegistry, audit_log: SqlAuditLog
) -> None:
    clock = SystemClock()
    journal = Journal(audit_log, clock, PrometheusMeter(), InProcessChanges())
    scopes, directory = Scopes(registry, clock), cast("Any", OneEngine())
    assert await scopes.current("acme", "tenant:acme") == "tenant:acme"
    await other_replica.retire_scope("acme", "tenant:acme")
    opened = OpenSession(registry, directory, journal, clock, scopes, CacheScope.TENANT)
    session = await opened(Principal("acme", "ann"), "s")
    assert session.salt_scope == "tenant:acme#1"
    assert await registry.session("acme", "s") == session
