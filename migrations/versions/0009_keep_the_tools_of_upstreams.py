"""Keep the tools of upstreams"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

Text = sa.String().with_variant(sa.String(collation="C"), "postgresql")
Instant = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "upstream_tools",
        sa.Column("upstream", Text, nullable=False),
        sa.Column("tool", Text, nullable=False),
        sa.Column("digest", Text, nullable=False),
        sa.Column("description", Text, nullable=False),
        sa.Column("seen_at", Instant, nullable=False),
        sa.Column("offered_at", Instant, nullable=False),
        sa.Column("accepted_at", Instant),
        sa.PrimaryKeyConstraint("upstream", "tool", "digest", name="pk_upstream_tools"),
    )
