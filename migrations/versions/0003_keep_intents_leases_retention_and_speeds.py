"""Keep intents, leases, retention and engine speeds"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

Text = sa.String().with_variant(sa.String(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "intents",
        sa.Column("tenant", Text, nullable=False),
        sa.Column("id", Text, nullable=False),
        sa.Column("operation", Text, nullable=False),
        sa.Column("window_name", Text, nullable=False),
        sa.Column("session_id", Text, nullable=True),
        sa.Column("cache_salt", Text, nullable=False),
        sa.Column("snapshot_id", Text, nullable=True),
        sa.Column("holder", Text, nullable=False),
        sa.Column("begun_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("details", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "id", name="pk_intents"),
    )
    op.create_index("ix_intents_tenant_window_name", "intents", ["tenant", "window_name"])
    op.create_index("ix_intents_tenant_snapshot_id", "intents", ["tenant", "snapshot_id"])
    op.create_table(
        "leases",
        sa.Column("name", Text, nullable=False),
        sa.Column("holder", Text, nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_leases"),
    )
    op.create_table(
        "engine_speeds",
        sa.Column("engine", Text, nullable=False),
        sa.Column("content", sa.JSON(), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("engine", name="pk_engine_speeds"),
    )
    op.add_column("windows", sa.Column("retention", Text, nullable=False, server_default="guaranteed"))
    op.add_column("windows", sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("windows", sa.Column("proven_at", sa.DateTime(timezone=True), nullable=True))
    op.create_index("ix_windows_expires_at", "windows", ["expires_at"])
    op.create_index("ix_sessions_state_updated_at", "sessions", ["state", "updated_at"])
    # Pending freezes get an intent without a holder, as if their gateway had stopped.
    op.execute(
        "INSERT INTO intents (tenant, id, operation, window_name, session_id, cache_salt, snapshot_id, holder, "
        "begun_at, details) SELECT tenant, uid, 'freeze', name, session_id, cache_salt, snapshot_id, '', "
        "created_at, '{}' FROM windows WHERE durability = 'pending'"
    )
