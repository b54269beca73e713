"""Keep canaries and salt epochs"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

Text = sa.String().with_variant(sa.String(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "canaries",
        sa.Column("tenant", Text, nullable=False),
        sa.Column("snapshot_id", Text, nullable=False),
        sa.Column("cache_salt", Text, nullable=False),
        sa.Column("content", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant", "snapshot_id"],
            ["snapshots.tenant", "snapshots.id"],
            name="fk_canaries_snapshots",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("tenant", "snapshot_id", "cache_salt", name="pk_canaries"),
    )
    op.create_table(
        "salt_epochs",
        sa.Column("tenant", Text, nullable=False),
        sa.Column("base", Text, nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "base", name="pk_salt_epochs"),
    )
