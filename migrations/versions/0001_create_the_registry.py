"""Create sessions, windows, snapshots, chunk references and the audit log"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

Text = sa.String().with_variant(sa.String(collation="C"), "postgresql")
LogId = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
Instant = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "audit_log",
        sa.Column("id", LogId, autoincrement=True, nullable=False),
        sa.Column("tenant", Text, nullable=False),
        sa.Column("timestamp", Instant, nullable=False),
        sa.Column("subject", Text, nullable=False),
        sa.Column("event", Text, nullable=False),
        sa.Column("outcome", Text, nullable=False),
        sa.Column("session_id", Text, nullable=True),
        sa.Column("window_name", Text, nullable=True),
        sa.Column("severity", Text, nullable=False),
        sa.Column("details", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_audit_log"),
    )
    op.create_index("ix_audit_log_tenant_timestamp_id", "audit_log", ["tenant", "timestamp", "id"])
    op.create_table(
        "sessions",
        sa.Column("tenant", Text, nullable=False),
        sa.Column("id", Text, nullable=False),
        sa.Column("owner", Text, nullable=False),
        sa.Column("model", Text, nullable=False),
        sa.Column("state", Text, nullable=False),
        sa.Column("salt_scope", Text, nullable=False),
        sa.Column("token_count", sa.Integer(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("created_at", Instant, nullable=False),
        sa.Column("updated_at", Instant, nullable=False),
        sa.Column("frozen_at", Instant, nullable=True),
        sa.Column("thawed_from", Text, nullable=True),
        sa.Column("thawed_from_uid", Text, nullable=True),
        sa.Column("branch_token", sa.Integer(), nullable=True),
        sa.Column("metadata", sa.JSON(), nullable=False),
        sa.Column("head", Text, nullable=True),
        sa.PrimaryKeyConstraint("tenant", "id", name="pk_sessions"),
    )
    op.create_index("ix_sessions_tenant_created_at", "sessions", ["tenant", "created_at"])
    op.create_index("ix_sessions_tenant_salt_scope_head", "sessions", ["tenant", "salt_scope", "head"])
    op.create_index("ix_sessions_tenant_state_created_at", "sessions", ["tenant", "state", "created_at"])
    op.create_index("ix_sessions_tenant_thawed_from_uid_id", "sessions", ["tenant", "thawed_from_uid", "id"])
    op.create_table(
        "snapshots",
        sa.Column("tenant", Text, nullable=False),
        sa.Column("id", Text, nullable=False),
        sa.Column("token_count", sa.Integer(), nullable=False),
        sa.Column("packed", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "id", name="pk_snapshots"),
    )
    op.create_table(
        "session_tokens",
        sa.Column("tenant", Text, nullable=False),
        sa.Column("session_id", Text, nullable=False),
        sa.Column("digest", Text, nullable=False),
        sa.Column("token_count", sa.Integer(), nullable=False),
        sa.Column("packed", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant", "session_id"],
            ["sessions.tenant", "sessions.id"],
            name="fk_session_tokens_sessions",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("tenant", "session_id", name="pk_session_tokens"),
    )
    op.create_table(
        "windows",
        sa.Column("tenant", Text, nullable=False),
        sa.Column("name", Text, nullable=False),
        sa.Column("uid", Text, nullable=False),
        sa.Column("session_id", Text, nullable=False),
        sa.Column("owner", Text, nullable=False),
        sa.Column("snapshot_id", Text, nullable=False),
        sa.Column("model", Text, nullable=False),
        sa.Column("token_count", sa.Integer(), nullable=False),
        sa.Column("block_count", sa.Integer(), nullable=False),
        sa.Column("total_size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("storage_tier", Text, nullable=False),
        sa.Column("durability", Text, nullable=False),
        sa.Column("salt_scope", Text, nullable=False),
        sa.Column("cache_salt", Text, nullable=False),
        sa.Column("identity", sa.JSON(), nullable=False),
        sa.Column("created_at", Instant, nullable=False),
        sa.Column("updated_at", Instant, nullable=False),
        sa.Column("description", Text, nullable=False),
        sa.Column("tags", sa.JSON(), nullable=False),
        sa.Column("parent_window", Text, nullable=True),
        sa.Column("parent_uid", Text, nullable=True),
        sa.Column("branch_token", sa.Integer(), nullable=True),
        sa.Column("pinned", sa.Boolean(), nullable=False),
        sa.Column("failure", Text, nullable=True),
        sa.Column("tiers", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant", "session_id"], ["sessions.tenant", "sessions.id"], name="fk_windows_sessions"
        ),
        sa.ForeignKeyConstraint(
            ["tenant", "snapshot_id"], ["snapshots.tenant", "snapshots.id"], name="fk_windows_snapshots"
        ),
        sa.PrimaryKeyConstraint("tenant", "name", name="pk_windows"),
    )
    op.create_index(
        "ix_windows_pending",
        "windows",
        ["tenant", "session_id"],
        sqlite_where=sa.text("durability = 'pending'"),
        postgresql_where=sa.text("durability = 'pending'"),
    )
    op.create_index("ix_windows_tenant_created_at_name", "windows", ["tenant", "created_at", "name"])
    op.create_index("ix_windows_tenant_parent_uid_name", "windows", ["tenant", "parent_uid", "name"])
    op.create_index("ix_windows_tenant_session_id", "windows", ["tenant", "session_id"])
    op.create_index("ix_windows_tenant_snapshot_id", "windows", ["tenant", "snapshot_id"])
    op.create_index("ix_windows_tenant_token_count_name", "windows", ["tenant", "token_count", "name"])
    op.create_index(
        "ix_windows_tenant_total_size_bytes_name", "windows", ["tenant", "total_size_bytes", "name"]
    )
    op.create_table(
        "chunk_refs",
        sa.Column("tenant", Text, nullable=False),
        sa.Column("window_name", Text, nullable=False),
        sa.Column("position", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("hash", Text, nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("cache_salt", Text, nullable=False),
        sa.Column("root", Text, nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant", "window_name"],
            ["windows.tenant", "windows.name"],
            name="fk_chunk_refs_windows",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("tenant", "window_name", "position", name="pk_chunk_refs"),
    )
    op.create_index(
        "ix_chunk_refs_tenant_cache_salt_hash_window_name_size_bytes",
        "chunk_refs",
        ["tenant", "cache_salt", "hash", "window_name", "size_bytes"],
    )
    op.create_table(
        "window_search",
        sa.Column("tenant", Text, nullable=False),
        sa.Column("name", Text, nullable=False),
        sa.Column("model", Text, nullable=False),
        sa.Column("created_at", Instant, nullable=False),
        sa.Column("token_count", sa.Integer(), nullable=False),
        sa.Column("total_size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("tags", Text, nullable=False),
        sa.Column("words", Text, nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant", "name"],
            ["windows.tenant", "windows.name"],
            name="fk_window_search_windows",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("tenant", "name", name="pk_window_search"),
        sqlite_with_rowid=False,
    )
