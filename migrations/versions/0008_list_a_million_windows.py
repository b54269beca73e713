"""List a million windows"""

from __future__ import annotations

import zlib
from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

Text = sa.String().with_variant(sa.String(collation="C"), "postgresql")
Instant = sa.DateTime(timezone=True)
SearchId = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

_BATCH = 1_000


def upgrade() -> None:
    op.execute("CREATE TABLE window_search_before AS SELECT * FROM window_search")
    op.drop_table("window_search")
    for column in ("created_at", "token_count", "total_size_bytes"):
        op.drop_index(f"ix_windows_tenant_{column}_name", "windows")
    _tables()
    _fill(op.get_bind())
    op.drop_table("window_search_before")


def _tables() -> None:
    op.create_table(
        "window_search",
        sa.Column("id", SearchId, autoincrement=True, nullable=False),
        sa.Column("tenant", Text, nullable=False),
        sa.Column("name", Text, nullable=False),
        sa.Column("model", Text, nullable=False),
        sa.Column("created_at", Instant, nullable=False),
        sa.Column("token_count", sa.Integer(), nullable=False),
        sa.Column("total_size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("tags", Text, nullable=False),
        sa.Column("words", Text, nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant", "name"],
            ["windows.tenant", "windows.name"],
            name="fk_window_search_windows",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name="pk_window_search"),
    )
    op.create_index("ix_window_search_tenant_name", "window_search", ["tenant", "name"], unique=True)
    for column in ("created_at", "token_count", "total_size_bytes"):
        op.create_index(f"ix_window_search_tenant_{column}_name", "window_search", ["tenant", column, "name"])
    op.create_table(
        "window_terms",
        sa.Column("tenant", Text, nullable=False),
        sa.Column("term", Text, nullable=False),
        sa.Column("created_at", Instant, nullable=False),
        sa.Column("name", Text, nullable=False),
        sa.Column("token_count", sa.Integer(), nullable=False),
        sa.Column("total_size_bytes", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "term", "created_at", "name", name="pk_window_terms"),
        sqlite_with_rowid=False,
    )
    for columns in (["name"], ["token_count", "name"], ["total_size_bytes", "name"]):
        op.create_index(
            f"ix_window_terms_tenant_term_{'_'.join(columns)}", "window_terms", ["tenant", "term", *columns]
        )
    op.create_table(
        "window_counts",
        sa.Column("tenant", Text, nullable=False),
        sa.Column("term", Text, nullable=False),
        sa.Column("windows", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "term", name="pk_window_counts"),
    )
    if op.get_bind().dialect.name == "sqlite":
        op.execute(
            "CREATE VIRTUAL TABLE window_grams USING "
            "fts5(grams, content='', columnsize=0, detail='none', tokenize='ascii')"
        )
        return
    op.create_table(
        "window_grams",
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("grams", postgresql.ARRAY(sa.Integer()), nullable=False),
        sa.ForeignKeyConstraint(
            ["id"], ["window_search.id"], name="fk_window_grams_window_search", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_window_grams"),
    )
    op.create_index(
        "ix_window_grams_grams",
        "window_grams",
        ["grams"],
        postgresql_using="gin",
        postgresql_with={"fastupdate": "off"},
    )


def _fill(connection: sa.Connection) -> None:
    """Fill the new tables with the existing windows, from the table that lists used before."""
    columns = "tenant, name, model, created_at, token_count, total_size_bytes, tags, words"
    connection.execute(
        sa.text(
            f"INSERT INTO window_search ({columns}) "  # noqa: S608 - names of columns
            f"SELECT {columns} FROM window_search_before ORDER BY tenant, created_at, name"
        )
    )
    connection.execute(
        sa.text(
            "INSERT INTO window_counts (tenant, term, windows) "
            "SELECT tenant, '', count(*) FROM window_search GROUP BY tenant"
        )
    )
    last = -1
    while rows := connection.execute(_NEXT, {"last": last, "most": _BATCH}).all():
        last = rows[-1].id
        connection.execute(_TERM, [{"id": row.id, "term": term} for row in rows for term in _terms(row)])
        _keep_grams(connection, rows)
    connection.execute(
        sa.text(
            "INSERT INTO window_counts (tenant, term, windows) "
            "SELECT tenant, term, count(*) FROM window_terms GROUP BY tenant, term"
        )
    )


_NEXT = sa.text(
    "SELECT id, tenant, model, tags, words FROM window_search WHERE id > :last ORDER BY id LIMIT :most"
)
_TERM = sa.text(
    "INSERT INTO window_terms (tenant, term, created_at, name, token_count, total_size_bytes) "
    "SELECT tenant, CAST(:term AS TEXT), created_at, name, token_count, total_size_bytes "
    "FROM window_search WHERE id = :id"
)


def _terms(row: Any) -> list[str]:
    tags = (bytes.fromhex(tag[1:-1]).decode(errors="surrogatepass") for tag in row.tags.split())
    return sorted({f"m{row.model}", *(f"t{tag}" for tag in tags)})


def _keep_grams(connection: sa.Connection, rows: Any) -> None:
    grams = [{"id": row.id, "grams": _grams(row)} for row in rows]
    if connection.dialect.name == "sqlite":
        spelled = [{**row, "grams": " ".join(f"{gram + 2**31:x}" for gram in row["grams"])} for row in grams]
        connection.execute(sa.text("INSERT INTO window_grams(rowid, grams) VALUES (:id, :grams)"), spelled)
        return
    kept = sa.table(
        "window_grams", sa.column("id", sa.BigInteger()), sa.column("grams", postgresql.ARRAY(sa.Integer()))
    )
    connection.execute(sa.insert(kept), grams)


def _grams(row: Any) -> list[int]:
    seed = zlib.crc32(row.tenant.encode())
    pieces = {row.words[at : at + 3] for at in range(len(row.words) - 2)}
    pieces.update(f"\x1e{term}" for term in _terms(row))
    return sorted(zlib.crc32(piece.encode("utf-8", "surrogatepass"), seed) - 2**31 for piece in pieces)
