"""Keep sums of turns"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

Text = sa.String().with_variant(sa.String(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "turn_sums",
        sa.Column("tenant", Text, nullable=False),
        sa.Column("hour", sa.DateTime(timezone=True), nullable=False),
        *(
            sa.Column(name, sa.BigInteger(), nullable=False)
            for name in ("turns", "prompt", "cached", "cold", "cold_ms")
        ),
        sa.PrimaryKeyConstraint("tenant", "hour", name="pk_turn_sums"),
    )
    op.create_index("ix_turn_sums_hour", "turn_sums", ["hour"])
    named = sa.text("window_name IS NOT NULL")
    op.create_index(
        "ix_audit_log_windows",
        "audit_log",
        ["tenant", "window_name", "seq"],
        sqlite_where=named,
        postgresql_where=named,
    )
