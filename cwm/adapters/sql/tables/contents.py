"""Shared contents, their holders, and stored results."""

from __future__ import annotations

from sqlalchemy import JSON, Boolean, Column, Index, LargeBinary, Table

from cwm.adapters.sql.tables.columns import Bytes, Text, UtcDateTime, metadata, required, tenant

# One row per distinct value of a tenant, as SharedContents stores it; several holders may share it.
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

# Every change to a tenant's contents first locks the tenant's row here, so that changes happen one after another.
content_usage = Table(
    "content_usage",
    metadata,
    tenant(),
    required("used_bytes", Bytes),
)

# Stored tool results that agents can read later; the bodies are in `contents`, by digest.
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
