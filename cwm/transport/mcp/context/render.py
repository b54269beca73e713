"""Converts the records of shared context to the answers of its tools."""

from __future__ import annotations

from cwm.domain.shared_context import ContextScope, Entry, Snapshot, uri_of
from cwm.services.context.requests import ContextStats, Found, KeyPage, Restored
from cwm.transport.mcp.context import schemas
from cwm.transport.mcp.contract.render import moment


def entry(of: Entry) -> schemas.ContextEntry:
    shown: schemas.ContextEntry = {
        "key": of.key,
        "version": of.version,
        "size_bytes": of.size,
        "priority": of.priority,
        "immutable": of.immutable,
        "author": of.author,
        "written_at": moment(of.written_at),
    }
    if of.expires_at is not None:
        shown["expires_at"] = moment(of.expires_at)
    return shown


def written(scope: ContextScope, of: Entry) -> schemas.ContextSet:
    return {"success": True, "scope": scope.name, "uri": uri_of(scope.name, of.key), "entry": entry(of)}


def value(scope: ContextScope, key: str, found: Found) -> schemas.ContextValue:
    shown: schemas.ContextValue = {
        "success": True,
        "scope": scope.name,
        "key": key,
        "found": found.entry is not None,
        "scope_version": found.version,
    }
    if found.entry is not None:
        shown["value"] = found.value
        shown["entry"] = entry(found.entry)
    return shown


def deleted(scope: ContextScope, key: str, of: Entry | None) -> schemas.ContextDeleted:
    shown: schemas.ContextDeleted = {
        "success": True,
        "scope": scope.name,
        "key": key,
        "deleted": of is not None,
    }
    if of is not None:
        shown["version"] = of.version
    return shown


def keys(scope: ContextScope, page: KeyPage) -> schemas.ContextKeys:
    shown: schemas.ContextKeys = {
        "success": True,
        "scope": scope.name,
        "scope_version": page.version,
        "entries": [entry(each) for each in page.entries],
        "has_more": page.more,
    }
    if page.more:
        shown["next_after"] = page.entries[-1].key
    return shown


def snapshot(of: Snapshot) -> schemas.ContextSnapshot:
    return {
        "label": of.label,
        "version": of.version,
        "author": of.author,
        "taken_at": moment(of.taken_at),
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


def stats(scope: ContextScope, result: ContextStats) -> schemas.ContextStats:
    store: schemas.ContextStore = {"used_bytes": result.tenant_bytes}
    if result.tenant_quota_bytes is not None:
        store["quota_bytes"] = result.tenant_quota_bytes
    return {
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
        "memory": {
            "used_bytes": result.memory_bytes,
            "limit_bytes": result.memory_limit_bytes,
            "eviction": result.eviction.value,
            "values": result.cached,
            "hot_values": result.hot,
            "hits": result.counts.hits,
            "warm_hits": result.counts.warm_hits,
            "misses": result.counts.misses,
            "evicted": result.counts.evicted,
        },
    }
