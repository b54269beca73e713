"""Say who may see sessions and windows"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

Text = sa.String().with_variant(sa.String(collation="C"), "postgresql")


def upgrade() -> None:
    """What there is stays visible to its tenant."""
    for table in ("sessions", "windows", "window_search"):
        op.add_column(table, sa.Column("circle", Text, nullable=False, server_default="tenant"))
    op.add_column("api_keys", sa.Column("workspaces", sa.JSON(), nullable=False, server_default="[]"))
    for columns in (["circle", "created_at"], ["circle", "state", "created_at"]):
        op.create_index(f"ix_sessions_tenant_{'_'.join(columns)}", "sessions", ["tenant", *columns])
    op.execute(
        "INSERT INTO window_terms (tenant, term, created_at, name, token_count, total_size_bytes) "
        "SELECT tenant, 'ctenant', created_at, name, token_count, total_size_bytes FROM window_search"
    )
    op.execute(
        "INSERT INTO window_counts (tenant, term, windows) "
        "SELECT tenant, 'ctenant', count(*) FROM window_search GROUP BY tenant"
    )
