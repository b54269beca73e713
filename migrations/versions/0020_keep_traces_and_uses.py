"""Keep the traces of turns and the last uses of keys, and find failed windows"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

Text = sa.String().with_variant(sa.String(collation="C"), "postgresql")


def upgrade() -> None:
    op.add_column("turns", sa.Column("trace_id", Text, nullable=True))
    op.add_column("api_keys", sa.Column("last_used_at", sa.DateTime(timezone=True), nullable=True))
    failed = sa.text("durability = 'failed'")
    op.create_index(
        "ix_windows_failed",
        "windows",
        ["tenant", "created_at", "name"],
        sqlite_where=failed,
        postgresql_where=failed,
    )
