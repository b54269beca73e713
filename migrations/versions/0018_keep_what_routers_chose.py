"""Keep what routers chose"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

Text = sa.String().with_variant(sa.String(collation="C"), "postgresql")


def upgrade() -> None:
    # In SQLite the column comes behind the tokens: a table that is made anew is emptied first, and responses go with their turns.
    op.add_column("turns", sa.Column("router_decision", Text, nullable=True))
