"""Gateways' intents and leases, the speeds and drains of their engines, and the upgrades of models."""

from __future__ import annotations

from sqlalchemy import JSON, Column, Index, Table

from cwm.adapters.sql.tables.columns import Text, UtcDateTime, metadata, required, tenant

# Operations that a gateway began and has not ended. A window's tokens may be deleted only if no intent needs them.
intents = Table(
    "intents",
    metadata,
    tenant(),
    Column("id", Text, primary_key=True),
    required("operation", Text),
    required("window_name", Text),
    Column("session_id", Text),
    required("cache_salt", Text),
    Column("snapshot_id", Text),
    required("holder", Text),
    required("begun_at", UtcDateTime),
    required("details", JSON),
    Index(None, "tenant", "window_name"),
    Index(None, "tenant", "snapshot_id"),
)

# This table and those below belong to gateways and engines, not to a tenant.
leases = Table(
    "leases",
    metadata,
    Column("name", Text, primary_key=True),
    required("holder", Text),
    required("seen_at", UtcDateTime),
)

engine_speeds = Table(
    "engine_speeds",
    metadata,
    Column("engine", Text, primary_key=True),
    required("content", JSON),
    required("updated_at", UtcDateTime),
)

engine_noise = Table(
    "engine_noise",
    metadata,
    Column("engine", Text, primary_key=True),
    required("content", JSON),
    required("updated_at", UtcDateTime),
)

engine_drains = Table(
    "engine_drains",
    metadata,
    Column("engine", Text, primary_key=True),
    required("since", UtcDateTime),
)

model_upgrades = Table(
    "model_upgrades",
    metadata,
    Column("model", Text, primary_key=True),
    required("identity", JSON),
    required("since", UtcDateTime),
    Column("begun_by", Text),
    Column("begun_by_tenant", Text),
)
