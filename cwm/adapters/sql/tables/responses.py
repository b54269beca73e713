"""Responses of OpenAI's API, the items of their answers, and conversations that they are added to.

``packed`` is zstd-compressed JSON of the response object, ``asked`` that of its request's items; null if a version of CWM before there were
weights kept both in ``packed``. A hidden response is kept for those that go on from it. Weights are what they take in memory, null where they are
not known; ``stored_bytes`` is the sum of what a conversation's items take here.

A conversation's ``holder`` is the process and the response that is being added to it. An item's ``packed`` is its zstd-compressed JSON.
"""

from __future__ import annotations

from sqlalchemy import JSON, Boolean, Column, ForeignKeyConstraint, Index, Integer, LargeBinary, Table

from cwm.adapters.sql.tables.columns import Bytes, Text, UtcDateTime, metadata, required, tenant

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
    Column("weight", Bytes),
    Column("asked", LargeBinary),
    Column("asked_weight", Bytes),
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

conversations = Table(
    "conversations",
    metadata,
    tenant(),
    Column("id", Text, primary_key=True),
    required("owner", Text),
    required("created_at", UtcDateTime),
    required("touched_at", UtcDateTime),
    required("metadata", JSON),
    Column("session_id", Text),
    Column("last_response", Text),
    Column("holder", Text),
    required("stored_bytes", Bytes, server_default="0"),
    required("item_count", Bytes, server_default="0"),
    Column("weight", Bytes),
    Index(None, "tenant", "session_id"),
    Index(None, "touched_at"),
)

conversation_items = Table(
    "conversation_items",
    metadata,
    tenant(),
    Column("conversation_id", Text, primary_key=True),
    Column("number", Integer, primary_key=True),
    required("id", Text),
    required("packed", LargeBinary),
    Column("weight", Bytes),
    ForeignKeyConstraint(
        ["tenant", "conversation_id"], ["conversations.tenant", "conversations.id"], ondelete="CASCADE"
    ),
)
