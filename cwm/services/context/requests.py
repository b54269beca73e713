"""Requests to shared context and their results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cwm.domain.eviction import Eviction
from cwm.domain.shared_context import DEFAULT_PRIORITY, Entry, Snapshot
from cwm.services.contents.cache import CacheCounts


@dataclass(frozen=True, slots=True)
class ContextLimits:
    """The most bytes of a value, the most versions and snapshots of a scope, and the lifetime of a key without its own.

    Without ``ttl_seconds`` such a key never expires.
    """

    value_bytes: int = 1024 * 1024
    versions: int = 1000
    snapshots: int = 100
    ttl_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Setting:
    """One key and the value, lifetime and conditions with which to set it.

    ``ttl_seconds``: 0 for ever, None for the default lifetime.
    """

    key: str
    value: Any
    ttl_seconds: float | None = None
    priority: int = DEFAULT_PRIORITY
    immutable: bool = False
    if_version: int | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """An entry and its value; both are None if the key does not exist. ``version`` is the scope's."""

    entry: Entry | None
    value: Any
    version: int


@dataclass(frozen=True, slots=True)
class KeyPage:
    """Entries in the order of their keys, at ``version`` of the scope. ``more``: further keys follow the last one."""

    entries: tuple[Entry, ...]
    version: int
    more: bool


@dataclass(frozen=True, slots=True)
class Restored:
    """``version`` is the scope's after the restore; ``written`` and ``deleted`` count keys."""

    snapshot: Snapshot
    version: int
    written: int
    deleted: int


@dataclass(frozen=True, slots=True)
class ContextStats:
    """Figures of one scope, of the tenant's part of the shared store, and of this process's memory."""

    version: int
    oldest_version: int
    keys: int
    value_bytes: int
    snapshots: tuple[Snapshot, ...]
    tenant_bytes: int
    tenant_quota_bytes: int | None
    memory_bytes: int
    memory_limit_bytes: int
    eviction: Eviction
    cached: int
    hot: int
    counts: CacheCounts
    loads: int
