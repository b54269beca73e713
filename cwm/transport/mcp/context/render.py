"""Converts the records of shared context to the answers of its tools."""

from __future__ import annotations

from cwm.domain.shared_context import ContextScope, Entry, Snapshot, uri_of
from cwm.services.context.requests import ContextStats, Found, KeyPage, Restored
from cwm.transport.mcp.context import schemas
from cwm.transport.mcp.contract.render.scalars import moment


def entry(record: Entry) -> schemas.ContextEntry:
    answer: schemas.ContextEntry = {
        "key": record.key,
        "version": record.version,
        "size_bytes": record.size,
        "hash": record.digest or "",
        "priority": record.priority,
        "immutable": record.immutable,
        "author": record.author,
        "written_at": moment(record.written_at),
    }
    if record.expires_at is not None:
        answer["expires_at"] = moment(record.expires_at)
    return answer


def written(scope: ContextScope, record: Entry) -> schemas.ContextSet:
    return {
        "success": True,
        "scope": scope.name,
        "uri": uri_of(scope.name, record.key),
        "entry": entry(record),
    }


def value(scope: ContextScope, key: str, reading: Found) -> schemas.ContextValue:
    answer: schemas.ContextValue = {
        "success": True,
        "scope": scope.name,
        "key": key,
        "found": reading.entry is not None,
        "scope_version": reading.version,
    }
    if reading.entry is not None:
        answer["value"] = reading.value
        answer["entry"] = entry(reading.entry)
    return answer


def deleted(scope: ContextScope, key: str, record: Entry | None) -> schemas.ContextDeleted:
    answer: schemas.ContextDeleted = {
        "success": True,
        "scope": scope.name,
        "key": key,
        "deleted": record is not None,
    }
    if record is not None:
        answer["version"] = record.version
    return answer


def keys(scope: ContextScope, page: KeyPage) -> schemas.ContextKeys:
    answer: schemas.ContextKeys = {
        "success": True,
        "scope": scope.name,
        "scope_version": page.version,
        "entries": [entry(each) for each in page.entries],
        "has_more": page.more,
    }
    if page.more:
        answer["next_after"] = page.entries[-1].key
    return answer


def snapshot(record: Snapshot) -> schemas.ContextSnapshot:
    return {
        "label": record.label,
        "version": record.version,
        "author": record.author,
        "taken_at": moment(record.taken_at),
    }


def restored(scope: ContextScope, result: Restored) -> schemas.ContextRestored:
    return {
        "success": True,
        "scope": scope.name,
        "snapshot": snapshot(result.snapshot),
        "version": result.version,
        "keys_written": result.written,
        "keys_deleted": result.deleted,
    }


def stats(scope: ContextScope, result: ContextStats, *, memory: bool) -> schemas.ContextStats:
    """``memory``: include this process's memory, which all tenants share."""
    store: schemas.ContextStore = {"used_bytes": result.tenant_bytes}
    if result.tenant_quota_bytes is not None:
        store["quota_bytes"] = result.tenant_quota_bytes
    answer: schemas.ContextStats = {
        "success": True,
        "scope": scope.name,
        "of_scope": {
            "version": result.version,
            "oldest_version": result.oldest_version,
            "keys": result.keys,
            "value_bytes": result.value_bytes,
            "snapshots": [snapshot(each) for each in result.snapshots],
        },
        "shared_store": store,
    }
    if memory:
        answer["memory"] = {
            "used_bytes": result.memory_bytes,
            "limit_bytes": result.memory_limit_bytes,
            "eviction": result.eviction.value,
            "values": result.cached,
            "hot_values": result.hot,
            "hits": result.counts.hits,
            "warm_hits": result.counts.warm_hits,
            "misses": result.counts.misses,
            "evicted": result.counts.evicted,
        }
    return answer
