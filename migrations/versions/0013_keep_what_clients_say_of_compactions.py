"""Keep what clients say of compactions"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "turn_tags", sa.Column("automatic", sa.Boolean(), nullable=False, server_default=sa.false())
    )
    compactions = sa.Column("compactions", sa.Integer(), nullable=True)
    if op.get_bind().dialect.name != "sqlite":
        op.add_column("turns", compactions)
        return
    # SQLite reads through everything before a column, and a turn's tokens may be long: they stay the last.
    with op.batch_alter_table("turns", recreate="always") as turns:
        turns.add_column(compactions, insert_before="messages")
