"""Keep moves and drains of engines"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

Text = sa.String().with_variant(sa.String(collation="C"), "postgresql")


def upgrade() -> None:
    op.add_column("sessions", sa.Column("moving_until", sa.DateTime(timezone=True), nullable=True))
    op.create_table(
        "engine_drains",
        sa.Column("engine", Text, nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("engine", name="pk_engine_drains"),
    )
