"""The tools that upstreams were seen to offer."""

from __future__ import annotations

from sqlalchemy import Column, Table

from cwm.adapters.sql.tables.columns import Text, UtcDateTime, metadata, required

# Upstreams belong to the deployment, not to a tenant. One row for each version of a tool.
upstream_tools = Table(
    "upstream_tools",
    metadata,
    Column("upstream", Text, primary_key=True),
    Column("tool", Text, primary_key=True),
    Column("digest", Text, primary_key=True),
    required("description", Text),
    required("seen_at", UtcDateTime),
    required("offered_at", UtcDateTime),
    Column("accepted_at", UtcDateTime),
)
