"""Shared context: scopes, every version of their entries, and labelled versions (snapshots)."""

from __future__ import annotations

from sqlalchemy import Boolean, Column, Index, Integer, Table, and_

from cwm.adapters.sql.tables.columns import Bytes, Text, UtcDateTime, metadata, required, tenant

# A scope's version counts its writes; entries superseded at or before its floor may be deleted.
context_scopes = Table(
    "context_scopes",
    metadata,
    tenant(),
    Column("scope", Text, primary_key=True),
    required("version", Bytes),
    required("floor", Bytes),
    required("written_at", UtcDateTime),
)

# One row per value of a key, from its version until another supersedes it; a row without a digest is a deletion.
context_entries = Table(
    "context_entries",
    metadata,
    tenant(),
    Column("scope", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("version", Bytes, primary_key=True),
    Column("superseded_at", Bytes),
    Column("digest", Text),
    required("size_bytes", Bytes),
    required("priority", Integer),
    required("immutable", Boolean),
    required("author", Text),
    required("written_at", UtcDateTime),
    Column("expires_at", UtcDateTime),
    Index(None, "tenant", "scope", "version"),
)
_entry = context_entries.c
_is_now = _entry.superseded_at.is_(None)
# Partial indexes of the rows that a clean-up deletes, so that it does not scan every key.
for _name, _column, _which in (
    ("past", _entry.superseded_at, _entry.superseded_at.is_not(None)),
    ("ending", _entry.expires_at, and_(_is_now, _entry.expires_at.is_not(None))),
    ("deleted", _entry.version, and_(_is_now, _entry.digest.is_(None))),
):
    Index(
        f"ix_context_entries_{_name}",
        _entry.tenant,
        _entry.scope,
        _column,
        sqlite_where=_which,
        postgresql_where=_which,
    )

context_snapshots = Table(
    "context_snapshots",
    metadata,
    tenant(),
    Column("scope", Text, primary_key=True),
    Column("label", Text, primary_key=True),
    required("version", Bytes),
    required("author", Text),
    required("taken_at", UtcDateTime),
)
