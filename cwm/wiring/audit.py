"""The audit log, and who looks after it."""

from __future__ import annotations

from cwm.adapters.local.secret import audit_keys
from cwm.adapters.sql.audit.log import SqlAuditLog
from cwm.adapters.sql.audit.trail import SqlAuditTrail
from cwm.adapters.sql.database import Database
from cwm.ports.clock import Clock
from cwm.services.audit.upkeep import AuditUpkeep
from cwm.settings import Settings


def audit_log(settings: Settings, database: Database, clock: Clock) -> tuple[SqlAuditLog, AuditUpkeep]:
    keys = audit_keys(settings.isolation)
    log, trail = SqlAuditLog(database, keys), SqlAuditTrail(database, keys)
    return log, AuditUpkeep(log, trail, keys, clock, settings.audit.keep_for())
