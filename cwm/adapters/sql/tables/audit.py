"""The audit log, its anchors (how far it is pruned) and its checkpoints (how far it is signed)."""

from __future__ import annotations

from sqlalchemy import JSON, Column, Index, Table

from cwm.adapters.sql.tables.columns import Bytes, Text, UtcDateTime, metadata, required, tenant

# Append-only: `seq` numbers a tenant's records without gaps, and `digest` covers the row and `previous`.
audit_log = Table(
    "audit_log",
    metadata,
    tenant(),
    Column("seq", Bytes, primary_key=True, autoincrement=False),
    required("timestamp", UtcDateTime),
    required("subject", Text),
    required("event", Text),
    required("outcome", Text),
    Column("session_id", Text),
    Column("window_name", Text),
    required("severity", Text),
    required("details", JSON),
    required("face", Text),
    Column("address", Text),
    Column("user_agent", Text),
    required("previous", Text),
    required("key_id", Text),
    required("digest", Text),
    Index(None, "tenant", "timestamp", "seq"),
)
# What happened to one window, without reading the whole log.
Index(
    "ix_audit_log_windows",
    audit_log.c.tenant,
    audit_log.c.window_name,
    audit_log.c.seq,
    sqlite_where=audit_log.c.window_name.is_not(None),
    postgresql_where=audit_log.c.window_name.is_not(None),
)

audit_anchors = Table(
    "audit_anchors",
    metadata,
    tenant(),
    required("pruned_through", Bytes),
    required("pruned_digest", Text),
    required("carried_through", Bytes),
    required("key_id", Text),
    required("signature", Text),
)

audit_checkpoints = Table(
    "audit_checkpoints",
    metadata,
    tenant(),
    required("seq", Bytes),
    required("digest", Text),
    required("at", UtcDateTime),
    required("key_id", Text),
    required("signature", Text),
)
