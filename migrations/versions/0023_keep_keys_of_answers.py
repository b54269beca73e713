"""Keep keys of answers, by which the sessions of unnamed conversations are found, and how each turn was found"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None

Text = sa.String().with_variant(sa.String(collation="C"), "postgresql")


def upgrade() -> None:
    for name in ("calls", "core_chain", "joined", "sealed_keys"):
        op.add_column("turns", sa.Column(name, Text, nullable=True))
    for name in ("calls", "core_chain"):
        is_set = sa.text(f"{name} IS NOT NULL")
        op.create_index(
            f"ix_turns_{name}",
            "turns",
            ["tenant", "author", name, "asked_at"],
            sqlite_where=is_set,
            postgresql_where=is_set,
        )
