"""The tasks of upstreams that clients have handles of."""

from __future__ import annotations

from sqlalchemy import Column, Index, Table

from cwm.adapters.sql.tables.columns import Text, UtcDateTime, metadata, required, tenant

upstream_tasks = Table(
    "upstream_tasks",
    metadata,
    tenant(),
    Column("handle", Text, primary_key=True),
    required("owner", Text),
    required("upstream", Text),
    required("tool", Text),
    required("created_at", UtcDateTime),
    required("open_until", UtcDateTime),
    required("expires_at", UtcDateTime),
    required("status", Text),
    Column("task_id", Text),
    Column("session", Text),
    Index(None, "tenant", "owner", "created_at"),
    Index(None, "expires_at"),
)
