"""Tag turns, and say what they cost"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0011"
branch_labels = None
depends_on = None

Text = sa.String().with_variant(sa.String(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "turn_tags",
        sa.Column("tenant", Text, nullable=False),
        sa.Column("name", Text, nullable=False),
        sa.Column("session_id", Text, nullable=False),
        sa.Column("turn_id", Text, nullable=False),
        sa.Column("author", Text, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant", "session_id"], ["sessions.tenant", "sessions.id"], name="fk_turn_tags_sessions"
        ),
        sa.PrimaryKeyConstraint("tenant", "name", name="pk_turn_tags"),
    )
    op.create_index("ix_turn_tags_tenant_session_id", "turn_tags", ["tenant", "session_id"])
    sqlite = op.get_bind().dialect.name == "sqlite"
    if sqlite:
        op.execute("ALTER TABLE turns RENAME COLUMN packed TO packed_first")
    for name, kind in _FACTS.items():
        op.add_column("turns", sa.Column(name, kind, nullable=True))
    if sqlite:
        # SQLite reads through everything before a column: the large one stays the last.
        op.add_column("turns", sa.Column("packed", sa.LargeBinary(), nullable=True))
        op.execute("UPDATE turns SET packed = packed_first")
        op.drop_column("turns", "packed_first")


_FACTS = {
    "old_message": Text,
    "new_message": Text,
    "cache_salt": Text,
    "first_token_ms": sa.Integer(),
    "missed": Text,
}
