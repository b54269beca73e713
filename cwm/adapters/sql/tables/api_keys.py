"""API keys."""

from __future__ import annotations

from sqlalchemy import JSON, Column, Index, Table

from cwm.adapters.sql.tables.columns import Text, UtcDateTime, metadata, required, tenant

# Its index does not begin with the tenant, because a key is looked up before its tenant is known.
api_keys = Table(
    "api_keys",
    metadata,
    tenant(),
    Column("key_id", Text, primary_key=True),
    required("name", Text),
    required("scopes", JSON),
    required("digest", Text),
    required("created_at", UtcDateTime),
    Column("expires_at", UtcDateTime),
    Column("revoked_at", UtcDateTime),
    required("workspaces", JSON, server_default="[]"),
    Column("last_used_at", UtcDateTime),
    Index(None, "key_id", unique=True),
)
