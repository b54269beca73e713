"""Keep sizes of what was said: titles, weights, and sums of stored bytes"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("turns", sa.Column("title", sa.LargeBinary(), nullable=True))
    op.add_column("turn_contents", sa.Column("weight", sa.BigInteger(), nullable=True))
    op.add_column("responses", sa.Column("weight", sa.BigInteger(), nullable=True))
    op.add_column("responses", sa.Column("asked", sa.LargeBinary(), nullable=True))
    op.add_column("responses", sa.Column("asked_weight", sa.BigInteger(), nullable=True))
    op.add_column("conversation_items", sa.Column("weight", sa.BigInteger(), nullable=True))
    for table, name in (
        ("sessions", "stored_bytes"),
        ("conversations", "stored_bytes"),
        ("conversations", "item_count"),
    ):
        op.add_column(table, sa.Column(name, sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("conversations", sa.Column("weight", sa.BigInteger(), nullable=True))
    op.execute(_SESSIONS)
    op.execute(_CONVERSATIONS)


# Both databases know the length of a value that lies beside its row without reading it.
_SESSIONS = """
UPDATE sessions SET stored_bytes =
    (SELECT coalesce(sum(1024 + coalesce(length(t.packed), 0)), 0) FROM turns t
     WHERE t.tenant = sessions.tenant AND t.session_id = sessions.id)
  + (SELECT coalesce(sum(length(c.packed)), 0) FROM turn_contents c
     WHERE c.tenant = sessions.tenant AND c.session_id = sessions.id)
  + (SELECT coalesce(sum(length(r.packed)), 0) FROM responses r
     WHERE r.tenant = sessions.tenant AND r.session_id = sessions.id)
"""
_CONVERSATIONS = """
UPDATE conversations SET
    item_count = (SELECT count(*) FROM conversation_items i
                  WHERE i.tenant = conversations.tenant AND i.conversation_id = conversations.id),
    stored_bytes = (SELECT coalesce(sum(length(i.packed)), 0) FROM conversation_items i
                    WHERE i.tenant = conversations.tenant AND i.conversation_id = conversations.id)
"""
