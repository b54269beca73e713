"""The answers of the shared context tools. A version numbers the scope: each write of any of its keys makes a new one."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, NotRequired

from pydantic import Field
from pydantic.config import JsonDict
from typing_extensions import TypedDict

from cwm.transport.mcp.contract.schemas.scalars import Timestamp

ANY_JSON: Final[JsonDict] = {
    "anyOf": [{"type": kind} for kind in ("object", "array", "string", "number", "boolean", "null")]
}
"""Any JSON value, with all types listed: some clients reject an empty schema as a mistake."""


class ContextEntry(TypedDict):
    key: str
    version: Annotated[
        int, Field(description="Version of the scope that this write made; pass it as if_version")
    ]
    size_bytes: Annotated[int, Field(description="Size of the value as JSON")]
    hash: Annotated[
        str, Field(description="SHA-256 of the value as canonical JSON, in hex: equal values have the same")
    ]
    priority: int
    immutable: bool
    author: Annotated[str, Field(description="The principal who wrote it")]
    written_at: Timestamp
    expires_at: NotRequired[Timestamp]


class ContextSet(TypedDict):
    success: bool
    scope: str
    uri: Annotated[str, Field(description="Resource URI to read or subscribe to")]
    entry: ContextEntry


class ContextValue(TypedDict):
    success: bool
    scope: str
    key: str
    found: bool
    scope_version: Annotated[int, Field(description="The version of the scope that was read")]
    value: NotRequired[
        Annotated[Any, Field(description="Left out if the key does not exist", json_schema_extra=ANY_JSON)]
    ]
    entry: NotRequired[ContextEntry]


class ContextDeleted(TypedDict):
    success: bool
    scope: str
    key: str
    deleted: Annotated[bool, Field(description="false if the key did not exist")]
    version: NotRequired[Annotated[int, Field(description="The new version of the scope")]]


class ContextKeys(TypedDict):
    success: bool
    scope: str
    scope_version: Annotated[int, Field(description="The version of the scope that was listed")]
    entries: Annotated[list[ContextEntry], Field(description="Sorted by key")]
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
    dropped: Annotated[
        list[str],
        Field(description="Labels of the oldest snapshots, if they were dropped because there were too many"),
    ]


class ContextRestored(TypedDict):
    success: bool
    scope: str
    snapshot: ContextSnapshot
    version: Annotated[int, Field(description="The new version of the scope")]
    keys_written: int
    keys_deleted: int


class ContextScopeStats(TypedDict):
    version: int
    oldest_version: Annotated[int, Field(description="The oldest version that can still be read")]
    keys: int
    value_bytes: Annotated[int, Field(description="Size of all values as JSON; equal values count each time")]
    snapshots: list[ContextSnapshot]


class ContextStore(TypedDict):
    used_bytes: Annotated[
        int,
        Field(
            description="Compressed size of one copy of each value, including past versions and stored results"
        ),
    ]
    quota_bytes: NotRequired[int]


class ContextMemory(TypedDict):
    used_bytes: int
    limit_bytes: int
    eviction: Literal["lru", "lfu", "ttl", "priority", "size"]
    values: Annotated[int, Field(description="Number of values in this process's memory")]
    hot_values: Annotated[int, Field(description="Number of these that are not compressed")]
    hits: Annotated[int, Field(description="Reads answered from memory, since the gateway started")]
    warm_hits: Annotated[int, Field(description="Reads from memory that had to decompress the value")]
    misses: Annotated[int, Field(description="Reads that went to the shared store")]
    evicted: int


class ContextStats(TypedDict):
    success: bool
    scope: str
    of_scope: ContextScopeStats
    shared_store: Annotated[ContextStore, Field(description="What the tenant uses of the shared store")]
    memory: NotRequired[
        Annotated[ContextMemory, Field(description="For admin: of this gateway process, all tenants")]
    ]
