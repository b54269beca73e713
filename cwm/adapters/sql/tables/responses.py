"""Responses of OpenAI's API, and the items of their answers.

``packed`` is zstd-compressed JSON of the items of the request and the response object. A hidden response is kept for those that go on from it.
"""

from __future__ import annotations

from sqlalchemy import Boolean, Column, ForeignKeyConstraint, Index, LargeBinary, Table

from cwm.adapters.sql.tables.columns import Text, UtcDateTime, metadata, required, tenant

responses = Table(
    "responses",
    metadata,
    tenant(),
    Column("id", Text, primary_key=True),
    required("owner", Text),
    required("session_id", Text),
    required("turn_id", Text),
    required("created_at", UtcDateTime),
    Column("previous", Text),
    required("hidden", Boolean),
    required("packed", LargeBinary),
    ForeignKeyConstraint(["tenant", "turn_id"], ["turns.tenant", "turns.id"], ondelete="CASCADE"),
    Index(None, "tenant", "turn_id"),
    Index(None, "tenant", "session_id"),
)

response_items = Table(
    "response_items",
    metadata,
    tenant(),
    Column("id", Text, primary_key=True),
    Column("response_id", Text, primary_key=True),
    ForeignKeyConstraint(["tenant", "response_id"], ["responses.tenant", "responses.id"], ondelete="CASCADE"),
    Index(None, "tenant", "response_id"),
)
