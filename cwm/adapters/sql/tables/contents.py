"""Shared bytes, who holds them, and the results that are made of them."""

from __future__ import annotations

from sqlalchemy import JSON, Boolean, Column, Index, LargeBinary, Table

from cwm.adapters.sql.tables.columns import Bytes, Text, UtcDateTime, metadata, required, tenant

# What several things of a tenant may hold: one row for equal bytes, as SharedContents stores them.
contents = Table(
    "contents",
    metadata,
    tenant(),
    Column("digest", Text, primary_key=True),
    required("stored", LargeBinary),
    required("size_bytes", Bytes),
)

content_holders = Table(
    "content_holders",
    metadata,
    tenant(),
    Column("digest", Text, primary_key=True),
    Column("holder", Text, primary_key=True),
    Column("expires_at", UtcDateTime),
    Index(None, "tenant", "expires_at"),
)

# Every change of a tenant's contents locks its row here first, so that they happen one after the other.
content_usage = Table(
    "content_usage",
    metadata,
    tenant(),
    required("used_bytes", Bytes),
)

# What tools answered and agents may read on; the bodies are kept apart, by digest.
stored_results = Table(
    "stored_results",
    metadata,
    tenant(),
    Column("handle", Text, primary_key=True),
    required("owner", Text),
    required("tool", Text),
    required("arguments_digest", Text),
    required("parts", JSON),
    required("size_bytes", Bytes),
    required("shared", Boolean),
    required("created_at", UtcDateTime),
    required("expires_at", UtcDateTime),
    Index(None, "tenant", "owner", "expires_at", "size_bytes"),
    Index(None, "expires_at"),
)
