"""The keys that were made for machines."""

from __future__ import annotations

from sqlalchemy import JSON, Column, Index, Table

from cwm.adapters.sql.tables.columns import Text, UtcDateTime, metadata, required, tenant

# A key is found before it is known whose it is: the one index that does not begin with the tenant.
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
    Index(None, "key_id", unique=True),
)
