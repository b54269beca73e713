"""Windows and the chunks they refer to.

``uid`` identifies one window for ever: a name can be reused after a delete, a ``uid`` cannot. So lineage is joined
over ``parent_uid`` and ``thawed_from_uid``, and names are only displayed.
"""

from __future__ import annotations

from sqlalchemy import JSON, Boolean, Column, ForeignKeyConstraint, Index, Integer, Table, false

from cwm.adapters.sql.tables.columns import Bytes, Text, UtcDateTime, metadata, required, tenant

windows = Table(
    "windows",
    metadata,
    tenant(),
    Column("name", Text, primary_key=True),
    required("uid", Text),
    required("session_id", Text),
    required("owner", Text),
    required("snapshot_id", Text),
    required("model", Text),
    required("token_count", Integer),
    required("block_count", Integer),
    required("total_size_bytes", Bytes),
    required("storage_tier", Text),
    required("durability", Text),
    required("salt_scope", Text),
    required("cache_salt", Text),
    required("identity", JSON),
    required("created_at", UtcDateTime),
    required("updated_at", UtcDateTime),
    required("description", Text),
    required("tags", JSON),
    Column("parent_window", Text),
    Column("parent_uid", Text),
    Column("branch_token", Integer),
    required("pinned", Boolean),
    Column("failure", Text),
    required("tiers", JSON),
    required("retention", Text, server_default="guaranteed"),
    Column("expires_at", UtcDateTime),
    Column("proven_at", UtcDateTime),
    Column("turn_id", Text),
    required("automatic", Boolean, server_default=false()),
    required("circle", Text, server_default="tenant"),
    ForeignKeyConstraint(["tenant", "session_id"], ["sessions.tenant", "sessions.id"]),
    ForeignKeyConstraint(["tenant", "snapshot_id"], ["snapshots.tenant", "snapshots.id"]),
    Index(None, "tenant", "session_id"),
    Index(None, "tenant", "snapshot_id"),
    Index(None, "tenant", "parent_uid", "name"),
    Index(None, "expires_at"),
)
Index(
    "ix_windows_pending",
    windows.c.tenant,
    windows.c.session_id,
    sqlite_where=windows.c.durability == "pending",
    postgresql_where=windows.c.durability == "pending",
)
Index(
    "ix_windows_failed",
    windows.c.tenant,
    windows.c.created_at,
    windows.c.name,
    sqlite_where=windows.c.durability == "failed",
    postgresql_where=windows.c.durability == "failed",
)

chunk_refs = Table(
    "chunk_refs",
    metadata,
    tenant(),
    Column("window_name", Text, primary_key=True),
    Column("position", Integer, primary_key=True, autoincrement=False),
    required("hash", Text),
    required("size_bytes", Bytes),
    required("cache_salt", Text),
    required("root", Text),
    ForeignKeyConstraint(["tenant", "window_name"], ["windows.tenant", "windows.name"], ondelete="CASCADE"),
    Index(None, "tenant", "cache_salt", "hash", "window_name", "size_bytes"),
)
