"""Keep the origins of canaries, and how far looks at the same KV are apart on each engine"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

Text = sa.String().with_variant(sa.String(collation="C"), "postgresql")


def upgrade() -> None:
    op.add_column("canaries", sa.Column("origin", Text, nullable=True))
    op.add_column("sessions", sa.Column("proven_tokens", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("sessions", sa.Column("proven_digest", Text, nullable=True))
    op.create_table(
        "engine_noise",
        sa.Column("engine", Text, nullable=False),
        sa.Column("content", sa.JSON(), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("engine", name="pk_engine_noise"),
    )
