"""Tag turns"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

Text = sa.String().with_variant(sa.String(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "turn_tags",
        sa.Column("tenant", Text, nullable=False),
        sa.Column("name", Text, nullable=False),
        sa.Column("session_id", Text, nullable=False),
        sa.Column("turn_id", Text, nullable=False),
        sa.Column("author", Text, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant", "session_id"], ["sessions.tenant", "sessions.id"], name="fk_turn_tags_sessions"
        ),
        sa.PrimaryKeyConstraint("tenant", "name", name="pk_turn_tags"),
    )
    op.create_index("ix_turn_tags_tenant_session_id", "turn_tags", ["tenant", "session_id"])
