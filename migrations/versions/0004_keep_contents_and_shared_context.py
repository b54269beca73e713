"""Keep contents and shared context"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

Text = sa.String().with_variant(sa.String(collation="C"), "postgresql")


def upgrade() -> None:
    _contents()
    _context()


def _contents() -> None:
    op.create_table(
        "contents",
        sa.Column("tenant", Text, nullable=False),
        sa.Column("digest", Text, nullable=False),
        sa.Column("stored", sa.LargeBinary(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "digest", name="pk_contents"),
    )
    op.create_table(
        "content_holders",
        sa.Column("tenant", Text, nullable=False),
        sa.Column("digest", Text, nullable=False),
        sa.Column("holder", Text, nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("tenant", "digest", "holder", name="pk_content_holders"),
    )
    op.create_index("ix_content_holders_tenant_expires_at", "content_holders", ["tenant", "expires_at"])
    op.create_table(
        "content_usage",
        sa.Column("tenant", Text, nullable=False),
        sa.Column("used_bytes", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", name="pk_content_usage"),
    )


def _context() -> None:
    op.create_table(
        "context_scopes",
        sa.Column("tenant", Text, nullable=False),
        sa.Column("scope", Text, nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("floor", sa.BigInteger(), nullable=False),
        sa.Column("written_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "scope", name="pk_context_scopes"),
    )
    op.create_table(
        "context_entries",
        sa.Column("tenant", Text, nullable=False),
        sa.Column("scope", Text, nullable=False),
        sa.Column("key", Text, nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("superseded_at", sa.BigInteger(), nullable=True),
        sa.Column("digest", Text, nullable=True),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("immutable", sa.Boolean(), nullable=False),
        sa.Column("author", Text, nullable=False),
        sa.Column("written_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("tenant", "scope", "key", "version", name="pk_context_entries"),
    )
    op.create_index(
        "ix_context_entries_tenant_scope_version", "context_entries", ["tenant", "scope", "version"]
    )
    for name, column, which in (
        ("past", "superseded_at", "superseded_at IS NOT NULL"),
        ("ending", "expires_at", "superseded_at IS NULL AND expires_at IS NOT NULL"),
        ("deleted", "version", "superseded_at IS NULL AND digest IS NULL"),
    ):
        op.create_index(
            f"ix_context_entries_{name}",
            "context_entries",
            ["tenant", "scope", column],
            sqlite_where=sa.text(which),
            postgresql_where=sa.text(which),
        )
    op.create_table(
        "context_snapshots",
        sa.Column("tenant", Text, nullable=False),
        sa.Column("scope", Text, nullable=False),
        sa.Column("label", Text, nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("author", Text, nullable=False),
        sa.Column("taken_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "scope", "label", name="pk_context_snapshots"),
    )
