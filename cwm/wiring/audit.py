"""The audit log without a gateway, for the operator's commands."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from cwm.adapters.local.clock import SystemClock
from cwm.adapters.local.secret import audit_keys
from cwm.adapters.sql import schema
from cwm.adapters.sql.audit.log import SqlAuditLog
from cwm.adapters.sql.audit.trail import SqlAuditTrail
from cwm.adapters.sql.database import open_database
from cwm.services.audit.sign import SignCarried
from cwm.services.audit.verify import VerifyAudit
from cwm.settings import Settings


@asynccontextmanager
async def opened_signing(settings: Settings) -> AsyncIterator[tuple[SignCarried, SqlAuditTrail]]:
    """Signing with the gateways' secret. SettingsError if it is missing: none is made."""
    keys = audit_keys(settings.isolation, make=False)
    database = open_database(settings.database.url())
    try:
        await schema.require_current(database)
        log, trail = SqlAuditLog(database, keys), SqlAuditTrail(database, keys)
        yield SignCarried(VerifyAudit(trail, keys), trail, log, SystemClock()), trail
        await log.settle()
    finally:
        await database.dispose()
