"""The turns of sessions, the messages that they add, and names for turns.

``packed`` is the zstd-compressed output of ``prefix.pack`` for the ids from ``parent_at`` to ``total_tokens``, null while
the answer is awaited. ``messages`` lists the digests of the messages behind ``parent_messages``. ``head`` is that of
``sessions``, for the turn's context. ``title`` is JSON of who asked and in brief what, null if a version of CWM before there were titles
recorded it. ``calls`` and ``core_chain`` are what an answer is looked for by, besides ``chain``; where there are keys to seal with, ``sealed_keys`` has what they were made of. A row that has ended never changes, but for the
``cache_salt`` of the turn of a session that goes on under another.
"""

from __future__ import annotations

from sqlalchemy import JSON, Boolean, Column, ForeignKeyConstraint, Index, Integer, LargeBinary, Table, false

from cwm.adapters.sql.tables.columns import Bytes, Text, UtcDateTime, metadata, required, tenant

turns = Table(
    "turns",
    metadata,
    tenant(),
    Column("id", Text, primary_key=True),
    required("session_id", Text),
    required("number", Integer),
    required("state", Text),
    required("author", Text),
    required("asked_at", UtcDateTime),
    Column("ended_at", UtcDateTime),
    required("holder", Text),
    required("client", Text),
    required("system", Text),
    required("tools", Text),
    Column("parent", Text),
    required("parent_at", Integer),
    required("parent_messages", Integer),
    required("prompt_tokens", Integer),
    required("total_tokens", Integer),
    required("prompt_digest", Text),
    required("digest", Text),
    required("continues", Boolean),
    required("main", Boolean),
    required("abandoned", Boolean),
    Column("cached_tokens", Integer),
    Column("diverged_at", Integer),
    required("cause", Text),
    Column("old_message", Text),
    Column("new_message", Text),
    Column("cache_salt", Text),
    Column("first_token_ms", Integer),
    Column("missed", Text),
    Column("head", Text),
    Column("chain", Text),
    Column("compacts", Text),
    Column("compactions", Integer),
    required("messages", JSON),
    # Behind almost all: SQLite reads through everything before a column.
    Column("packed", LargeBinary),
    # Behind the tokens, because what refers to turns would go with a table that is made anew. Null costs no read.
    Column("router_decision", Text),
    Column("trace_id", Text),
    Column("title", LargeBinary),
    Column("calls", Text),
    Column("core_chain", Text),
    Column("joined", Text),
    Column("sealed_keys", Text),
    ForeignKeyConstraint(["tenant", "session_id"], ["sessions.tenant", "sessions.id"], ondelete="CASCADE"),
    Index(None, "tenant", "session_id", "number", unique=True),
)
# The turns of every tenant that a gateway awaits.
Index(
    "ix_turns_asked",
    turns.c.asked_at,
    sqlite_where=turns.c.state == "asked",
    postgresql_where=turns.c.state == "asked",
)

Index(
    "ix_turns_chain",
    turns.c.tenant,
    turns.c.author,
    turns.c.chain,
    turns.c.asked_at,
    sqlite_where=turns.c.chain.is_not(None),
    postgresql_where=turns.c.chain.is_not(None),
)

for _name in ("calls", "core_chain"):
    Index(
        f"ix_turns_{_name}",
        turns.c.tenant,
        turns.c.author,
        turns.c[_name],
        turns.c.asked_at,
        sqlite_where=turns.c[_name].is_not(None),
        postgresql_where=turns.c[_name].is_not(None),
    )

# Each message once per session; ``packed`` is zstd-compressed JSON, empty for a message that is not kept, and ``weight`` what it takes in
# memory, null if a version of CWM before there were weights recorded it.
turn_contents = Table(
    "turn_contents",
    metadata,
    tenant(),
    Column("session_id", Text, primary_key=True),
    Column("digest", Text, primary_key=True),
    required("packed", LargeBinary),
    Column("weight", Bytes),
    ForeignKeyConstraint(["tenant", "session_id"], ["sessions.tenant", "sessions.id"], ondelete="CASCADE"),
)

turn_tags = Table(
    "turn_tags",
    metadata,
    tenant(),
    Column("name", Text, primary_key=True),
    required("session_id", Text),
    required("turn_id", Text),
    required("author", Text),
    required("created_at", UtcDateTime),
    required("automatic", Boolean, server_default=false()),
    ForeignKeyConstraint(["tenant", "session_id"], ["sessions.tenant", "sessions.id"]),
    Index(None, "tenant", "session_id"),
)
