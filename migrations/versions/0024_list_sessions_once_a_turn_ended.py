"""List sessions that a request opened once a turn has ended in them"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("sessions", sa.Column("listed", sa.Boolean(), nullable=False, server_default=sa.true()))
    # Of those without a turn, these alone are surely no tool's.
    is_postgres = op.get_bind().dialect.name == "postgresql"
    found_by = "metadata ->> 'found_by'" if is_postgres else "json_extract(metadata, '$.found_by')"
    op.execute(_UNLISTED.format(found_by=found_by))
    unlisted = {f"{dialect}_where": sa.text("NOT listed") for dialect in ("sqlite", "postgresql")}
    op.create_index("ix_sessions_unlisted", "sessions", ["updated_at"], **unlisted)


_UNLISTED = """
UPDATE sessions SET listed = false
WHERE current_turn IS NULL AND state <> 'deleted' AND {found_by} IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM turns t WHERE t.tenant = sessions.tenant AND t.session_id = sessions.id AND t.state = 'ended')
"""
