"""Sessions, and the snapshots of their windows.

``head`` is the digest of a session's first 16 token ids (null if it has fewer), ``current_turn`` the turn whose context is
the session's, with its number, and ``next_number`` that of the next turn. ``circle`` says who may see it, ``engine`` which one of several serves it,
``moving_until`` how long a move to another one holds it,
``proven_tokens`` for how many tokens a verdict called loaded KV right, and ``proven_digest`` for which. ``stored_bytes`` is, about, what its turns, messages and responses take here. ``listed`` is false while no turn
has ended in a session that a request opened. A snapshot's ``id`` is the digest of all its
token ids, ``packed`` the zstd-compressed output of ``prefix.pack``. A canary's ``origin`` is null if a version of CWM before there were
origins recorded it.
"""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    Table,
    not_,
    true,
)

from cwm.adapters.sql.tables.columns import Bytes, Text, UtcDateTime, metadata, required, tenant

sessions = Table(
    "sessions",
    metadata,
    tenant(),
    Column("id", Text, primary_key=True),
    required("owner", Text),
    required("model", Text),
    required("state", Text),
    required("salt_scope", Text),
    required("token_count", Integer),
    required("revision", Integer),
    required("created_at", UtcDateTime),
    required("updated_at", UtcDateTime),
    Column("frozen_at", UtcDateTime),
    Column("thawed_from", Text),
    Column("thawed_from_uid", Text),
    Column("branch_token", Integer),
    required("metadata", JSON),
    Column("head", Text),
    Column("current_turn", Text),
    required("current_number", Integer, server_default="0"),
    required("next_number", Integer, server_default="1"),
    required("circle", Text, server_default="tenant"),
    Column("engine", Text),
    Column("moving_until", UtcDateTime),
    required("proven_tokens", Integer, server_default="0"),
    Column("proven_digest", Text),
    required("stored_bytes", Bytes, server_default="0"),
    required("listed", Boolean, server_default=true()),
    Index(None, "tenant", "created_at"),
    Index(None, "tenant", "state", "created_at"),
    Index(None, "tenant", "circle", "created_at"),
    Index(None, "tenant", "circle", "state", "created_at"),
    Index(None, "tenant", "salt_scope", "head"),
    Index(None, "tenant", "thawed_from_uid", "id"),
    Index(None, "state", "updated_at"),
)

Index(
    "ix_sessions_unlisted",
    sessions.c.updated_at,
    sqlite_where=not_(sessions.c.listed),
    postgresql_where=not_(sessions.c.listed),
)

salt_epochs = Table(
    "salt_epochs",
    metadata,
    tenant(),
    Column("base", Text, primary_key=True),
    required("epoch", Integer),
)

snapshots = Table(
    "snapshots",
    metadata,
    tenant(),
    Column("id", Text, primary_key=True),
    required("token_count", Integer),
    required("packed", LargeBinary),
)

canaries = Table(
    "canaries",
    metadata,
    tenant(),
    Column("snapshot_id", Text, primary_key=True),
    Column("cache_salt", Text, primary_key=True),
    required("content", JSON),
    Column("origin", Text),
    ForeignKeyConstraint(["tenant", "snapshot_id"], ["snapshots.tenant", "snapshots.id"], ondelete="CASCADE"),
)
