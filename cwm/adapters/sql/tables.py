"""The schema. Every key starts with the tenant, so that no index ever mixes two.

``uid`` names one window for ever: a name can be given again after a delete, a ``uid`` cannot, so lineage
is joined over ``parent_uid`` and ``thawed_from_uid`` and only shown by name. ``packed`` is zstd of token
ids as ``prefix.pack`` writes them, ``head`` the digest of a session's first 16 (null for fewer), and a
snapshot's ``id`` the digest of all of them.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Dialect,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    TypeDecorator,
    and_,
)
from sqlalchemy.dialects.postgresql import ARRAY

# Byte order, so that both databases sort and compare alike whatever locale Postgres was made with.
Text: Final = String().with_variant(String(collation="C"), "postgresql")
Bytes: Final = BigInteger()
RowId: Final = BigInteger().with_variant(Integer(), "sqlite")


class UtcDateTime(TypeDecorator[datetime]):
    """An aware datetime in UTC. SQLite keeps no zone, so it is taken off and put back."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a timestamp needs a time zone")
        utc = value.astimezone(UTC)
        return utc.replace(tzinfo=None) if dialect.name == "sqlite" else utc

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(referred_table_name)s",
    }
)


def _required(name: str, kind: Any, **options: Any) -> Column[Any]:
    return Column(name, kind, nullable=False, **options)


def _tenant() -> Column[Any]:
    return Column("tenant", Text, primary_key=True)


sessions = Table(
    "sessions",
    metadata,
    _tenant(),
    Column("id", Text, primary_key=True),
    _required("owner", Text),
    _required("model", Text),
    _required("state", Text),
    _required("salt_scope", Text),
    _required("token_count", Integer),
    _required("revision", Integer),
    _required("created_at", UtcDateTime),
    _required("updated_at", UtcDateTime),
    Column("frozen_at", UtcDateTime),
    Column("thawed_from", Text),
    Column("thawed_from_uid", Text),
    Column("branch_token", Integer),
    _required("metadata", JSON),
    Column("head", Text),
    Index(None, "tenant", "created_at"),
    Index(None, "tenant", "state", "created_at"),
    Index(None, "tenant", "salt_scope", "head"),
    Index(None, "tenant", "thawed_from_uid", "id"),
    Index(None, "state", "updated_at"),
)

session_tokens = Table(
    "session_tokens",
    metadata,
    _tenant(),
    Column("session_id", Text, primary_key=True),
    _required("digest", Text),
    _required("token_count", Integer),
    _required("packed", LargeBinary),
    ForeignKeyConstraint(["tenant", "session_id"], ["sessions.tenant", "sessions.id"], ondelete="CASCADE"),
)

snapshots = Table(
    "snapshots",
    metadata,
    _tenant(),
    Column("id", Text, primary_key=True),
    _required("token_count", Integer),
    _required("packed", LargeBinary),
)

canaries = Table(
    "canaries",
    metadata,
    _tenant(),
    Column("snapshot_id", Text, primary_key=True),
    Column("cache_salt", Text, primary_key=True),
    _required("content", JSON),
    ForeignKeyConstraint(["tenant", "snapshot_id"], ["snapshots.tenant", "snapshots.id"], ondelete="CASCADE"),
)

salt_epochs = Table(
    "salt_epochs",
    metadata,
    _tenant(),
    Column("base", Text, primary_key=True),
    _required("epoch", Integer),
)

windows = Table(
    "windows",
    metadata,
    _tenant(),
    Column("name", Text, primary_key=True),
    _required("uid", Text),
    _required("session_id", Text),
    _required("owner", Text),
    _required("snapshot_id", Text),
    _required("model", Text),
    _required("token_count", Integer),
    _required("block_count", Integer),
    _required("total_size_bytes", Bytes),
    _required("storage_tier", Text),
    _required("durability", Text),
    _required("salt_scope", Text),
    _required("cache_salt", Text),
    _required("identity", JSON),
    _required("created_at", UtcDateTime),
    _required("updated_at", UtcDateTime),
    _required("description", Text),
    _required("tags", JSON),
    Column("parent_window", Text),
    Column("parent_uid", Text),
    Column("branch_token", Integer),
    _required("pinned", Boolean),
    Column("failure", Text),
    _required("tiers", JSON),
    _required("retention", Text, server_default="guaranteed"),
    Column("expires_at", UtcDateTime),
    Column("proven_at", UtcDateTime),
    ForeignKeyConstraint(["tenant", "session_id"], ["sessions.tenant", "sessions.id"]),
    ForeignKeyConstraint(["tenant", "snapshot_id"], ["snapshots.tenant", "snapshots.id"]),
    Index(None, "tenant", "session_id"),
    Index(None, "tenant", "snapshot_id"),
    Index(None, "tenant", "parent_uid", "name"),
    Index(None, "expires_at"),
)
Index(
    "ix_windows_pending",
    windows.c.tenant,
    windows.c.session_id,
    sqlite_where=windows.c.durability == "pending",
    postgresql_where=windows.c.durability == "pending",
)

# What lists look through: narrow rows, in every order that can be asked for. All of it, and of the three tables after
# it, is derived from ``windows``; ``window_search.py`` says how they are used.
window_search = Table(
    "window_search",
    metadata,
    Column("id", RowId, primary_key=True, autoincrement=True),
    _required("tenant", Text),
    _required("name", Text),
    _required("model", Text),
    _required("created_at", UtcDateTime),
    _required("token_count", Integer),
    _required("total_size_bytes", Bytes),
    _required("tags", Text),
    _required("words", Text),
    ForeignKeyConstraint(["tenant", "name"], ["windows.tenant", "windows.name"], ondelete="CASCADE"),
    Index(None, "tenant", "name", unique=True),
    Index(None, "tenant", "created_at", "name"),
    Index(None, "tenant", "token_count", "name"),
    Index(None, "tenant", "total_size_bytes", "name"),
)

# One row for each tag of a window and one for its model, those of a term beside each other in every order.
window_terms = Table(
    "window_terms",
    metadata,
    _tenant(),
    Column("term", Text, primary_key=True),
    Column("created_at", UtcDateTime, primary_key=True),
    Column("name", Text, primary_key=True),
    _required("token_count", Integer),
    _required("total_size_bytes", Bytes),
    Index(None, "tenant", "term", "name"),
    Index(None, "tenant", "term", "token_count", "name"),
    Index(None, "tenant", "term", "total_size_bytes", "name"),
    sqlite_with_rowid=False,
)

# How many windows a tenant has with a term, and in all under the empty one.
window_counts = Table(
    "window_counts",
    metadata,
    _tenant(),
    Column("term", Text, primary_key=True),
    _required("windows", Bytes),
)

# Which pieces of three characters occur in a window's words. In SQLite it is an FTS5 table whose rowid is the id.
window_grams = Table(
    "window_grams",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    _required("grams", ARRAY(Integer)),
    ForeignKeyConstraint(["id"], ["window_search.id"], ondelete="CASCADE"),
    Index(None, "grams", postgresql_using="gin", postgresql_with={"fastupdate": "off"}),
)

chunk_refs = Table(
    "chunk_refs",
    metadata,
    _tenant(),
    Column("window_name", Text, primary_key=True),
    Column("position", Integer, primary_key=True, autoincrement=False),
    _required("hash", Text),
    _required("size_bytes", Bytes),
    _required("cache_salt", Text),
    _required("root", Text),
    ForeignKeyConstraint(["tenant", "window_name"], ["windows.tenant", "windows.name"], ondelete="CASCADE"),
    Index(None, "tenant", "cache_salt", "hash", "window_name", "size_bytes"),
)

# What a gateway began and has not ended. A window's own tokens may only be dropped when no intent needs them.
intents = Table(
    "intents",
    metadata,
    _tenant(),
    Column("id", Text, primary_key=True),
    _required("operation", Text),
    _required("window_name", Text),
    Column("session_id", Text),
    _required("cache_salt", Text),
    Column("snapshot_id", Text),
    _required("holder", Text),
    _required("begun_at", UtcDateTime),
    _required("details", JSON),
    Index(None, "tenant", "window_name"),
    Index(None, "tenant", "snapshot_id"),
)

# What tools answered and agents may read on; the bodies are kept apart, by digest.
stored_results = Table(
    "stored_results",
    metadata,
    _tenant(),
    Column("handle", Text, primary_key=True),
    _required("owner", Text),
    _required("tool", Text),
    _required("arguments_digest", Text),
    _required("parts", JSON),
    _required("size_bytes", Bytes),
    _required("shared", Boolean),
    _required("created_at", UtcDateTime),
    _required("expires_at", UtcDateTime),
    Index(None, "tenant", "owner", "expires_at", "size_bytes"),
    Index(None, "expires_at"),
)

# These two belong to gateways and engines, not to a tenant.
leases = Table(
    "leases",
    metadata,
    Column("name", Text, primary_key=True),
    _required("holder", Text),
    _required("seen_at", UtcDateTime),
)

engine_speeds = Table(
    "engine_speeds",
    metadata,
    Column("engine", Text, primary_key=True),
    _required("content", JSON),
    _required("updated_at", UtcDateTime),
)

# Append-only: `seq` numbers a tenant's records without a gap, and `digest` is over the row and `previous`.
audit_log = Table(
    "audit_log",
    metadata,
    _tenant(),
    Column("seq", Bytes, primary_key=True, autoincrement=False),
    _required("timestamp", UtcDateTime),
    _required("subject", Text),
    _required("event", Text),
    _required("outcome", Text),
    Column("session_id", Text),
    Column("window_name", Text),
    _required("severity", Text),
    _required("details", JSON),
    _required("face", Text),
    Column("address", Text),
    Column("user_agent", Text),
    _required("previous", Text),
    _required("key_id", Text),
    _required("digest", Text),
    Index(None, "tenant", "timestamp", "seq"),
)

audit_anchors = Table(
    "audit_anchors",
    metadata,
    _tenant(),
    _required("pruned_through", Bytes),
    _required("pruned_digest", Text),
    _required("carried_through", Bytes),
    _required("key_id", Text),
    _required("signature", Text),
)

audit_checkpoints = Table(
    "audit_checkpoints",
    metadata,
    _tenant(),
    _required("seq", Bytes),
    _required("digest", Text),
    _required("at", UtcDateTime),
    _required("key_id", Text),
    _required("signature", Text),
)

# What several things of a tenant may hold: one row for equal bytes, as SharedContents stores them.
contents = Table(
    "contents",
    metadata,
    _tenant(),
    Column("digest", Text, primary_key=True),
    _required("stored", LargeBinary),
    _required("size_bytes", Bytes),
)

content_holders = Table(
    "content_holders",
    metadata,
    _tenant(),
    Column("digest", Text, primary_key=True),
    Column("holder", Text, primary_key=True),
    Column("expires_at", UtcDateTime),
    Index(None, "tenant", "expires_at"),
)

# Every change of a tenant's contents locks its row here first, so that they happen one after the other.
content_usage = Table(
    "content_usage",
    metadata,
    _tenant(),
    _required("used_bytes", Bytes),
)

# A scope's version counts its writes; what was superseded up to its floor may be gone.
context_scopes = Table(
    "context_scopes",
    metadata,
    _tenant(),
    Column("scope", Text, primary_key=True),
    _required("version", Bytes),
    _required("floor", Bytes),
    _required("written_at", UtcDateTime),
)

# One row for what a key was from one version on, until another superseded it; without a digest it was deleted.
context_entries = Table(
    "context_entries",
    metadata,
    _tenant(),
    Column("scope", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("version", Bytes, primary_key=True),
    Column("superseded_at", Bytes),
    Column("digest", Text),
    _required("size_bytes", Bytes),
    _required("priority", Integer),
    _required("immutable", Boolean),
    _required("author", Text),
    _required("written_at", UtcDateTime),
    Column("expires_at", UtcDateTime),
    Index(None, "tenant", "scope", "version"),
)
_entry = context_entries.c
_is_now = _entry.superseded_at.is_(None)
# What a clean-up looks for, and nothing else: it finds that without passing every key.
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
    _tenant(),
    Column("scope", Text, primary_key=True),
    Column("label", Text, primary_key=True),
    _required("version", Bytes),
    _required("author", Text),
    _required("taken_at", UtcDateTime),
)

# A key is found before it is known whose it is: the one index that does not begin with the tenant.
api_keys = Table(
    "api_keys",
    metadata,
    _tenant(),
    Column("key_id", Text, primary_key=True),
    _required("name", Text),
    _required("scopes", JSON),
    _required("digest", Text),
    _required("created_at", UtcDateTime),
    Column("expires_at", UtcDateTime),
    Column("revoked_at", UtcDateTime),
    Index(None, "key_id", unique=True),
)
