"""The answers of the shared context tools. A version numbers the scope: each write of any of its keys makes a new one."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, NotRequired

from pydantic import Field
from pydantic.config import JsonDict
from typing_extensions import TypedDict

from cwm.transport.mcp.contract.schemas import Timestamp

ANY_JSON: Final[JsonDict] = {
    "anyOf": [{"type": kind} for kind in ("object", "array", "string", "number", "boolean", "null")]
}
"""Any JSON value, with all types listed: some clients reject an empty schema as a mistake."""


class ContextEntry(TypedDict):
    key: str
    version: Annotated[int, Field(description="Of the scope, when the key was written; for if_version")]
    size_bytes: Annotated[int, Field(description="Of the value as JSON")]
    priority: int
    immutable: bool
    author: Annotated[str, Field(description="Who wrote it")]
    written_at: Timestamp
    expires_at: NotRequired[Timestamp]


class ContextSet(TypedDict):
    success: bool
    scope: str
    uri: Annotated[str, Field(description="Resource to read or subscribe to")]
    entry: ContextEntry


class ContextValue(TypedDict):
    success: bool
    scope: str
    key: str
    found: bool
    scope_version: Annotated[int, Field(description="The version that was read")]
    value: NotRequired[
        Annotated[Any, Field(description="Left out where the key is not there", json_schema_extra=ANY_JSON)]
    ]
    entry: NotRequired[ContextEntry]


class ContextDeleted(TypedDict):
    success: bool
    scope: str
    key: str
    deleted: Annotated[bool, Field(description="False where the key was not there")]
    version: NotRequired[Annotated[int, Field(description="Of the scope, now")]]


class ContextKeys(TypedDict):
    success: bool
    scope: str
    scope_version: Annotated[int, Field(description="The version that was listed")]
    entries: Annotated[list[ContextEntry], Field(description="In the order of their keys")]
    has_more: bool
    next_after: NotRequired[Annotated[str, Field(description="Pass it as after for the next page")]]


class ContextSnapshot(TypedDict):
    label: str
    version: int
    author: str
    taken_at: Timestamp


class ContextSnapshotTaken(TypedDict):
    success: bool
    scope: str
    snapshot: ContextSnapshot
    dropped: Annotated[list[str], Field(description="Labels of the oldest, where there were too many")]


class ContextRestored(TypedDict):
    success: bool
    scope: str
    snapshot: ContextSnapshot
    version: Annotated[int, Field(description="Of the scope, now")]
    keys_written: int
    keys_deleted: int


class ContextScopeStats(TypedDict):
    version: int
    oldest_version: Annotated[int, Field(description="Versions from here on can be read")]
    keys: int
    value_bytes: Annotated[
        int, Field(description="Of all values as JSON, equal ones as often as they are there")
    ]
    snapshots: list[ContextSnapshot]


class ContextStore(TypedDict):
    used_bytes: Annotated[
        int,
        Field(description="One copy of each value, compressed; past versions and stored results included"),
    ]
    quota_bytes: NotRequired[int]


class ContextMemory(TypedDict):
    used_bytes: int
    limit_bytes: int
    eviction: Literal["lru", "lfu", "ttl", "priority", "size"]
    values: Annotated[int, Field(description="Kept in this process")]
    hot_values: Annotated[int, Field(description="Of these, those that are not compressed")]
    hits: Annotated[int, Field(description="Reads answered from memory, since the start")]
    warm_hits: Annotated[int, Field(description="Reads that only had to decompress")]
    misses: Annotated[int, Field(description="Reads that went to the shared store")]
    evicted: int


class ContextStats(TypedDict):
    success: bool
    scope: str
    of_scope: ContextScopeStats
    shared_store: Annotated[ContextStore, Field(description="The tenant's part of it")]
    memory: Annotated[ContextMemory, Field(description="Of this gateway process, all tenants")]
