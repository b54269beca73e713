"""The tables that lists of windows read, all derived from ``windows``.

``window_list/search.py`` describes their use.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, ForeignKeyConstraint, Index, Integer, Table
from sqlalchemy.dialects.postgresql import ARRAY

from cwm.adapters.sql.tables.columns import Bytes, RowId, Text, UtcDateTime, metadata, required, tenant

# Narrow rows, with an index for every sort order.
window_search = Table(
    "window_search",
    metadata,
    Column("id", RowId, primary_key=True, autoincrement=True),
    required("tenant", Text),
    required("name", Text),
    required("model", Text),
    required("created_at", UtcDateTime),
    required("token_count", Integer),
    required("total_size_bytes", Bytes),
    required("tags", Text),
    required("words", Text),
    required("circle", Text, server_default="tenant"),
    ForeignKeyConstraint(["tenant", "name"], ["windows.tenant", "windows.name"], ondelete="CASCADE"),
    Index(None, "tenant", "name", unique=True),
    Index(None, "tenant", "created_at", "name"),
    Index(None, "tenant", "token_count", "name"),
    Index(None, "tenant", "total_size_bytes", "name"),
)

# One row per tag of a window, one for its model and one for its circle; indexes give the rows of a term in every sort order.
window_terms = Table(
    "window_terms",
    metadata,
    tenant(),
    Column("term", Text, primary_key=True),
    Column("created_at", UtcDateTime, primary_key=True),
    Column("name", Text, primary_key=True),
    required("token_count", Integer),
    required("total_size_bytes", Bytes),
    Index(None, "tenant", "term", "name"),
    Index(None, "tenant", "term", "token_count", "name"),
    Index(None, "tenant", "term", "total_size_bytes", "name"),
    sqlite_with_rowid=False,
)

# The number of a tenant's windows with each term, and of all its windows under the empty term.
window_counts = Table(
    "window_counts",
    metadata,
    tenant(),
    Column("term", Text, primary_key=True),
    required("windows", Bytes),
)

# The three-character pieces of a window's words. On SQLite this is an FTS5 table whose rowid is the id.
window_grams = Table(
    "window_grams",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    required("grams", ARRAY(Integer)),
    ForeignKeyConstraint(["id"], ["window_search.id"], ondelete="CASCADE"),
    Index(None, "grams", postgresql_using="gin", postgresql_with={"fastupdate": "off"}),
)
