"""The foundation of all other parts: clock, telemetry, database, shared store, access, limits, journal."""

from __future__ import annotations

from dataclasses import dataclass

from cwm.adapters.local import process
from cwm.adapters.local.clock import SystemClock
from cwm.adapters.local.secret import audit_keys
from cwm.adapters.sql.audit.log import SqlAuditLog
from cwm.adapters.sql.audit.trail import SqlAuditTrail
from cwm.adapters.sql.database import Database, open_database
from cwm.adapters.sql.leases import SqlLeases
from cwm.adapters.sql.registry.registry import SqlRegistry
from cwm.adapters.sql.traced import traced
from cwm.adapters.sql.turns.stored_bytes import SqlStoredBytes
from cwm.adapters.sql.vault import Vault
from cwm.adapters.telemetry.prometheus import PrometheusMeter
from cwm.adapters.telemetry.tracing import open_tracer
from cwm.domain.operators import Operators
from cwm.ports.clock import Clock
from cwm.ports.tracing import Tracer
from cwm.services.access.limits import Limits
from cwm.services.access.storage import Storage
from cwm.services.audit.journal import Journal
from cwm.services.audit.upkeep import AuditUpkeep
from cwm.services.replicas import Replicas
from cwm.settings import Settings
from cwm.wiring.access import Access, build_access
from cwm.wiring.limits import build_limits
from cwm.wiring.shared_store import SharedStore, shared_store


@dataclass(frozen=True, slots=True)
class Foundation:
    """``replicas``: the gateways that use the same registry. ``shared``: the stores of agent data that they use together."""

    clock: Clock
    meter: PrometheusMeter
    tracer: Tracer
    database: Database
    registry: SqlRegistry
    replicas: Replicas
    shared: SharedStore
    access: Access
    operators: Operators
    audit: SqlAuditLog
    trail: SqlAuditTrail
    audit_upkeep: AuditUpkeep
    journal: Journal
    limits: Limits
    storage: Storage


def build_foundation(settings: Settings) -> Foundation:
    clock, meter, tracer = SystemClock(), PrometheusMeter(), open_tracer(settings.tracing)
    database = traced(open_database(settings.database.url()), tracer)
    replicas = Replicas(SqlLeases(database), process.holder(), process.has_ended)
    keys = audit_keys(settings.isolation)
    audit, trail = SqlAuditLog(database, keys, meter, tracer), SqlAuditTrail(database, keys)
    shared = shared_store(settings, database, clock, tracer)
    access = build_access(settings, database, audit, clock, meter)
    limits = build_limits(settings, shared.counting, access.identity, audit, meter, clock)
    return Foundation(
        clock=clock,
        meter=meter,
        tracer=tracer,
        database=database,
        registry=SqlRegistry(database, replicas.me, Vault(settings.database.registry_keys())),
        replicas=replicas,
        shared=shared,
        access=access,
        operators=Operators(settings.isolation.tenant),
        audit=audit,
        trail=trail,
        audit_upkeep=AuditUpkeep(
            ends=audit,
            trail=trail,
            keys=keys,
            clock=clock,
            keep_for=settings.audit.keep_for(),
        ),
        journal=Journal(audit=audit, clock=clock, meter=meter, changes=shared.changes, tracer=tracer),
        limits=limits,
        storage=Storage(SqlStoredBytes(database), limits, clock),
    )
