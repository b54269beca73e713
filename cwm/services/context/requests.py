"""What is asked of shared context, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cwm.domain.eviction import Eviction
from cwm.domain.shared_context import DEFAULT_PRIORITY, Entry, Snapshot
from cwm.services.contents.cache import CacheCounts


@dataclass(frozen=True, slots=True)
class ContextLimits:
    """Per value, per scope, and for how long what."""

    value_bytes: int = 1024 * 1024
    versions: int = 1000
    snapshots: int = 100


@dataclass(frozen=True, slots=True)
class Setting:
    """What a caller wants a key to be."""

    key: str
    value: Any
    ttl_seconds: float | None = None
    priority: int = DEFAULT_PRIORITY
    immutable: bool = False
    if_version: int | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """``entry`` and its value; None and None where the key is not there. ``version`` is the scope's."""

    entry: Entry | None
    value: Any
    version: int


@dataclass(frozen=True, slots=True)
class KeyPage:
    """Entries in the order of their keys; ``more`` follow the last. ``version`` is the scope's that they show."""

    entries: tuple[Entry, ...]
    version: int
    more: bool


@dataclass(frozen=True, slots=True)
class Restored:
    """``version`` is the scope's now; ``written`` and ``deleted`` count keys."""

    snapshot: Snapshot
    version: int
    written: int
    deleted: int


@dataclass(frozen=True, slots=True)
class ContextStats:
    """Of one scope, of the tenant's part of the shared store, and of this process."""

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
