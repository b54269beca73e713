"""Keep API keys"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

Text = sa.String().with_variant(sa.String(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "api_keys",
        sa.Column("tenant", Text, nullable=False),
        sa.Column("key_id", Text, nullable=False),
        sa.Column("name", Text, nullable=False),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("digest", Text, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True)),
        sa.Column("revoked_at", sa.DateTime(timezone=True)),
        sa.PrimaryKeyConstraint("tenant", "key_id", name="pk_api_keys"),
    )
    op.create_index("ix_api_keys_key_id", "api_keys", ["key_id"], unique=True)
