"""An audit log from before there was a chain comes along when the schema is brought up to date."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import pytest
from sqlalchemy import Connection, text

from cwm.adapters.local.clock import SystemClock
from cwm.adapters.sql import schema
from cwm.adapters.sql.audit.log import SqlAuditLog
from cwm.adapters.sql.audit.trail import SqlAuditTrail
from cwm.adapters.sql.database import Database, open_database
from cwm.domain.audit_chain import ChainKeys
from cwm.domain.audit_check import Damage
from cwm.services.audit.sign import SignCarried, Signing
from cwm.services.audit.verify import VerifyAudit
from tests.contracts.test_audit_log import an_event

KEYS: Final = ChainKeys([b"a secret"])
_ROWS: Final = 2_500


async def as_it_was(url: str) -> Database:
    """A database of the schema before the chain, with records of two tenants."""

    def migrated(connection: Connection) -> None:
        from alembic import command

        command.upgrade(schema.configuration(connection, []), "0005")
        row = text(
            "INSERT INTO audit_log (tenant, timestamp, subject, event, outcome, window_name, severity, details) "
            "VALUES (:tenant, '2026-03-01 12:30:15.123456', 'ann', :event, 'success', 'w1', 'INFO', :details)"
        )
        rows = [
            {"tenant": ("acme", "bolt")[n % 2], "event": f"e{n}", "details": '{"b": 1.5, "a": ["é"]}'}
            for n in range(_ROWS)
        ]
        connection.execute(row, rows)

    database = open_database(url)
    await database.write(migrated)
    return database


@pytest.mark.slow
async def test_records_from_before_the_chain_are_carried_over_and_vouched_for(
    empty_database_url: str,
) -> None:
    database = await as_it_was(empty_database_url)
    try:
        applied = await schema.upgrade(empty_database_url)
        assert applied == list(schema.REVISIONS[schema.REVISIONS.index("0005") + 1 :])
        log, trail = SqlAuditLog(database, KEYS), SqlAuditTrail(database, KEYS)
        verify = VerifyAudit(trail, KEYS)
        sign = SignCarried(verify, trail, log, SystemClock())
        for tenant in ("acme", "bolt"):
            assert [(each.damage, each.first, each.last) for each in (await verify(tenant)).findings] == [
                (Damage.UNSIGNED, 1, _ROWS // 2)
            ]
            assert (await sign(tenant))[0] is Signing.SIGNED
            assert (await sign(tenant))[0] is Signing.NOTHING
            await log.record(an_event("new", tenant=tenant))
            verdict = await verify(tenant)
            assert verdict.whole
            assert (verdict.records, verdict.carried) == (_ROWS // 2 + 2, _ROWS // 2)
        events = [record.event for record in await trail.page("acme", 0, _ROWS)]
        assert [event.event for event in events] == [
            *(f"e{n}" for n in range(0, _ROWS, 2)),
            "audit.sign_carried",
            "new",
        ]
        assert events[0].details == {"b": 1.5, "a": ["é"]}
        assert events[-2].details["last"] == _ROWS // 2

        assert await trail.prune("acme", datetime.now(UTC), 100) == 100
        assert (await VerifyAudit(trail, KEYS)("acme")).whole

        changed = text("UPDATE audit_log SET outcome = 'changed' WHERE tenant = 'acme' AND seq = 107")
        await database.write(lambda connection: connection.execute(changed))
        assert [found.damage for found in (await VerifyAudit(trail, KEYS)("acme")).findings] == [
            Damage.CHANGED
        ]
    finally:
        await database.dispose()
