"""Keep every turn of a session"""

from __future__ import annotations

from uuid import uuid4

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

Text = sa.String().with_variant(sa.String(collation="C"), "postgresql")
Instant = sa.DateTime(timezone=True)

_BATCH = 1_000


def upgrade() -> None:
    op.create_table(
        "turns",
        sa.Column("tenant", Text, nullable=False),
        sa.Column("id", Text, nullable=False),
        sa.Column("session_id", Text, nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("state", Text, nullable=False),
        sa.Column("author", Text, nullable=False),
        sa.Column("asked_at", Instant, nullable=False),
        sa.Column("ended_at", Instant, nullable=True),
        sa.Column("holder", Text, nullable=False),
        sa.Column("client", Text, nullable=False),
        sa.Column("system", Text, nullable=False),
        sa.Column("tools", Text, nullable=False),
        sa.Column("parent", Text, nullable=True),
        sa.Column("parent_at", sa.Integer(), nullable=False),
        sa.Column("parent_messages", sa.Integer(), nullable=False),
        sa.Column("prompt_tokens", sa.Integer(), nullable=False),
        sa.Column("total_tokens", sa.Integer(), nullable=False),
        sa.Column("prompt_digest", Text, nullable=False),
        sa.Column("digest", Text, nullable=False),
        sa.Column("continues", sa.Boolean(), nullable=False),
        sa.Column("main", sa.Boolean(), nullable=False),
        sa.Column("abandoned", sa.Boolean(), nullable=False),
        sa.Column("cached_tokens", sa.Integer(), nullable=True),
        sa.Column("diverged_at", sa.Integer(), nullable=True),
        sa.Column("cause", Text, nullable=False),
        sa.Column("old_message", Text, nullable=True),
        sa.Column("new_message", Text, nullable=True),
        sa.Column("cache_salt", Text, nullable=True),
        sa.Column("first_token_ms", sa.Integer(), nullable=True),
        sa.Column("missed", Text, nullable=True),
        sa.Column("head", Text, nullable=True),
        sa.Column("chain", Text, nullable=True),
        sa.Column("compacts", Text, nullable=True),
        sa.Column("messages", sa.JSON(), nullable=False),
        sa.Column("packed", sa.LargeBinary(), nullable=True),
        sa.ForeignKeyConstraint(
            ["tenant", "session_id"],
            ["sessions.tenant", "sessions.id"],
            name="fk_turns_sessions",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("tenant", "id", name="pk_turns"),
    )
    op.create_index(
        "ix_turns_tenant_session_id_number", "turns", ["tenant", "session_id", "number"], unique=True
    )
    asked = sa.text("state = 'asked'")
    op.create_index("ix_turns_asked", "turns", ["asked_at"], sqlite_where=asked, postgresql_where=asked)
    chained = sa.text("chain IS NOT NULL")
    op.create_index(
        "ix_turns_chain",
        "turns",
        ["tenant", "author", "chain", "asked_at"],
        sqlite_where=chained,
        postgresql_where=chained,
    )
    op.add_column("windows", sa.Column("turn_id", Text, nullable=True))
    op.add_column("windows", sa.Column("automatic", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.create_table(
        "turn_contents",
        sa.Column("tenant", Text, nullable=False),
        sa.Column("session_id", Text, nullable=False),
        sa.Column("digest", Text, nullable=False),
        sa.Column("packed", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant", "session_id"],
            ["sessions.tenant", "sessions.id"],
            name="fk_turn_contents_sessions",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("tenant", "session_id", "digest", name="pk_turn_contents"),
    )
    op.add_column("sessions", sa.Column("current_turn", Text, nullable=True))
    op.add_column("sessions", sa.Column("current_number", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("sessions", sa.Column("next_number", sa.Integer(), nullable=False, server_default="1"))
    _make_turns(op.get_bind())
    op.execute(_FROZEN)
    op.drop_table("session_tokens")


def _make_turns(connection: sa.Connection) -> None:
    """Make the stored tokens of every session its first turn."""
    row = {"tenant": "", "session_id": ""}
    while rows := connection.execute(_NEXT, {**row, "most": _BATCH}).all():
        keys = [{"tenant": each.tenant, "session_id": each.session_id, "id": uuid4().hex} for each in rows]
        connection.execute(_TURN, keys)
        connection.execute(_CURRENT, keys)
        row = {"tenant": rows[-1].tenant, "session_id": rows[-1].session_id}


_NEXT = sa.text(
    "SELECT tenant, session_id FROM session_tokens WHERE token_count > 0 "
    "AND (tenant > :tenant OR tenant = :tenant AND session_id > :session_id) "
    "ORDER BY tenant, session_id LIMIT :most"
)
_TURN = sa.text(
    "INSERT INTO turns (tenant, id, session_id, number, state, author, asked_at, ended_at, holder, client, "
    "system, tools, parent_at, parent_messages, prompt_tokens, total_tokens, prompt_digest, digest, continues, main, abandoned, cause, "
    "head, packed, messages) "
    "SELECT s.tenant, CAST(:id AS TEXT), s.id, 1, 'ended', s.owner, s.updated_at, s.updated_at, '', '', '', '', 0, 0, "
    "t.token_count, t.token_count, t.digest, t.digest, false, true, false, '', s.head, t.packed, '[]' "
    "FROM session_tokens t JOIN sessions s ON s.tenant = t.tenant AND s.id = t.session_id "
    "WHERE t.tenant = :tenant AND t.session_id = :session_id"
)
_CURRENT = sa.text(
    "UPDATE sessions SET current_turn = :id, current_number = 1, next_number = 2 "
    "WHERE tenant = :tenant AND id = :session_id"
)

# A snapshot's id is the digest of its token ids.
_FROZEN = (
    "UPDATE windows SET turn_id = (SELECT t.id FROM turns t WHERE t.tenant = windows.tenant "
    "AND t.session_id = windows.session_id AND t.digest = windows.snapshot_id)"
)
