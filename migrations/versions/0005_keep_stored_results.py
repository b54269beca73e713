"""Keep stored results"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

Text = sa.String().with_variant(sa.String(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "stored_results",
        sa.Column("tenant", Text, nullable=False),
        sa.Column("handle", Text, nullable=False),
        sa.Column("owner", Text, nullable=False),
        sa.Column("tool", Text, nullable=False),
        sa.Column("arguments_digest", Text, nullable=False),
        sa.Column("parts", sa.JSON(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("shared", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "handle", name="pk_stored_results"),
    )
    op.create_index(
        "ix_stored_results_tenant_owner_expires_at_size_bytes",
        "stored_results",
        ["tenant", "owner", "expires_at", "size_bytes"],
    )
    op.create_index("ix_stored_results_expires_at", "stored_results", ["expires_at"])
