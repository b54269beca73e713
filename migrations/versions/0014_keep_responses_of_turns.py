"""Keep responses of turns, and conversations that they are added to"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

Text = sa.String().with_variant(sa.String(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "responses",
        sa.Column("tenant", Text, nullable=False),
        sa.Column("id", Text, nullable=False),
        sa.Column("owner", Text, nullable=False),
        sa.Column("session_id", Text, nullable=False),
        sa.Column("turn_id", Text, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("previous", Text),
        sa.Column("hidden", sa.Boolean(), nullable=False),
        sa.Column("packed", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant", "turn_id"], ["turns.tenant", "turns.id"], name="fk_responses_turns", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("tenant", "id", name="pk_responses"),
    )
    op.create_index("ix_responses_tenant_turn_id", "responses", ["tenant", "turn_id"])
    op.create_index("ix_responses_tenant_session_id", "responses", ["tenant", "session_id"])
    op.create_table(
        "response_items",
        sa.Column("tenant", Text, nullable=False),
        sa.Column("id", Text, nullable=False),
        sa.Column("response_id", Text, nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant", "response_id"],
            ["responses.tenant", "responses.id"],
            name="fk_response_items_responses",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("tenant", "id", "response_id", name="pk_response_items"),
    )
    op.create_index("ix_response_items_tenant_response_id", "response_items", ["tenant", "response_id"])
    op.create_table(
        "conversations",
        sa.Column("tenant", Text, nullable=False),
        sa.Column("id", Text, nullable=False),
        sa.Column("owner", Text, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("touched_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("metadata", sa.JSON(), nullable=False),
        sa.Column("session_id", Text),
        sa.Column("last_response", Text),
        sa.Column("holder", Text),
        sa.PrimaryKeyConstraint("tenant", "id", name="pk_conversations"),
    )
    op.create_index("ix_conversations_tenant_session_id", "conversations", ["tenant", "session_id"])
    op.create_index("ix_conversations_touched_at", "conversations", ["touched_at"])
    op.create_table(
        "conversation_items",
        sa.Column("tenant", Text, nullable=False),
        sa.Column("conversation_id", Text, nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("id", Text, nullable=False),
        sa.Column("packed", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant", "conversation_id"],
            ["conversations.tenant", "conversations.id"],
            name="fk_conversation_items_conversations",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("tenant", "conversation_id", "number", name="pk_conversation_items"),
    )
