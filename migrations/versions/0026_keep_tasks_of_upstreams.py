"""Keep tasks of upstreams"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None

Text = sa.String().with_variant(sa.String(collation="C"), "postgresql")
Instant = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "upstream_tasks",
        sa.Column("tenant", Text, nullable=False),
        sa.Column("handle", Text, nullable=False),
        sa.Column("owner", Text, nullable=False),
        sa.Column("upstream", Text, nullable=False),
        sa.Column("tool", Text, nullable=False),
        sa.Column("created_at", Instant, nullable=False),
        sa.Column("open_until", Instant, nullable=False),
        sa.Column("expires_at", Instant, nullable=False),
        sa.Column("status", Text, nullable=False),
        sa.Column("task_id", Text),
        sa.Column("session", Text),
        sa.PrimaryKeyConstraint("tenant", "handle", name="pk_upstream_tasks"),
    )
    for columns in (("tenant", "owner", "created_at"), ("expires_at",)):
        op.create_index(f"ix_upstream_tasks_{'_'.join(columns)}", "upstream_tasks", columns)
