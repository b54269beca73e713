"""Shared context: agents set, get, delete and list keys, take snapshots and restore them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from cwm.domain.canonical import canonical_json
from cwm.domain.changes import Change, ChangeKind
from cwm.domain.errors import (
    ContextConflictError,
    InvalidParameterError,
    SnapshotNotFoundError,
    StorageCorruptionError,
    StorageQuotaExceededError,
)
from cwm.domain.principal import Principal
from cwm.domain.shared_context import (
    ANSWERS,
    ANY_SUFFIX,
    ContextScope,
    Entry,
    Snapshot,
    Write,
    difference,
    require_key,
    require_label,
    uri_of,
)
from cwm.domain.showable import recorded
from cwm.ports.changes import Changes
from cwm.ports.clock import Clock
from cwm.ports.context_index import Bytes, ContextIndex, Written
from cwm.ports.meter import Meter
from cwm.ports.tracing import UNTRACED, Tracer
from cwm.services.aside import to_its_end
from cwm.services.contents.contents import SharedContents
from cwm.services.context.requests import ContextLimits, ContextStats, Found, KeyPage, Restored, Setting
from cwm.services.context.views import ContextViews
from cwm.threads import aside

MAX_PAGE: Final = 1000

_MAX_RESTORE_ATTEMPTS: Final = 20
# Above this many keys, publish one notification for their common prefix.
_MAX_NOTIFICATIONS: Final = 100


@dataclass(slots=True)
class SharedContext:
    """A write is completely in the shared store before it is acknowledged; a read sees all acknowledged writes.

    Values are JSON; equal values of a tenant are stored once. Raises CWM-4001 and 4002 if the store is unreachable.
    """

    index: ContextIndex
    contents: SharedContents
    views: ContextViews
    changes: Changes
    meter: Meter
    clock: Clock
    limits: ContextLimits = field(default_factory=ContextLimits)
    quota_bytes: int | None = None
    tracer: Tracer = UNTRACED

    async def set(self, principal: Principal, scope: ContextScope, setting: Setting) -> Entry:
        """Set one key. CWM-1003 if the value is too large; CWM-3007 if the key is immutable or not at ``if_version``."""
        require_key(setting.key)
        value = canonical_json(setting.value)
        if len(value) > self.limits.value_bytes:
            raise InvalidParameterError(
                f"value: has {len(value)} bytes of JSON, and may have {self.limits.value_bytes}.",
                field="value",
            )
        with self.tracer.span("context_set"), self.meter.operation("context_set"):
            new = await self.contents.to_store(value)
            ttl = self.limits.ttl_seconds if setting.ttl_seconds is None else setting.ttl_seconds
            write = Write(
                setting.key,
                new.digest,
                len(value),
                setting.priority,
                setting.immutable,
                max(1, round(ttl * 1000)) if ttl else None,
                if_version=setting.if_version,
            )
            try:
                result = await self._write(scope, [write], principal.subject, new)
            except StorageQuotaExceededError:
                # Delete old versions of the scope to make room.
                for digest in await self.index.trim(scope):
                    await self.contents.gone(scope.tenant, digest)
                result = await self._write(scope, [write], principal.subject, new)
            entry = result.entries[0]
            self.contents.was_stored(scope.tenant, value, new, entry.priority, entry.expires_at)
        return entry

    async def get(
        self, scope: ContextScope, key: str, version: int | None = None, snapshot: str | None = None
    ) -> Found:
        """The key's entry and value now, at a version of the scope, or in a snapshot.

        CWM-1003 if the version is unknown or both are given; CWM-2006 if the snapshot is unknown; CWM-4004 if the value
        is lost.
        """
        require_key(key)
        with self.tracer.span("context_get"), self.meter.operation("context_get"):
            at, entry = await self._entry(scope, key, version, snapshot)
            while entry is not None and entry.digest is not None:
                value = await self.contents.read(scope.tenant, entry.digest, priority=entry.priority)
                if value is not None:
                    return Found(entry, await _parsed(value), at)
                previous = entry
                at, entry = await self._entry(scope, key, version, snapshot)
                # Another version means that the key was overwritten and its old version trimmed meanwhile: read that one.
                if entry is not None and entry.version == previous.version:
                    raise StorageCorruptionError(
                        "The value was damaged or lost in the shared store, and dropped: set the key again.",
                        key=key,
                    )
            return Found(None, None, at)

    async def delete(
        self, principal: Principal, scope: ContextScope, key: str, if_version: int | None = None
    ) -> Entry | None:
        """Delete one key; None if it did not exist. CWM-3007 as for :meth:`set`."""
        require_key(key)
        with self.tracer.span("context_delete"), self.meter.operation("context_delete"):
            result = await self._write(scope, [Write(key, if_version=if_version)], principal.subject)
        return result.entries[0] if result.entries else None

    async def list(
        self, scope: ContextScope, prefix: str, after: str | None, limit: int, snapshot: str | None = None
    ) -> KeyPage:
        """A page of the keys that start with ``prefix`` and sort after ``after``. CWM-2006 if the snapshot is unknown."""
        require_key(prefix, prefix=True)
        view = await self.views.now(scope)
        entries: Mapping[str, Entry]
        if snapshot is None:
            version, entries = view.head.version, view.entries
            keys = self.views.keys(scope, view, prefix, after)
        else:
            version = (await self._snapshot(scope, snapshot)).version
            entries = await self._state(scope, version)
            keys = sorted(key for key in entries if key.startswith(prefix) and (after is None or key > after))
        page: list[Entry] = []
        for key in keys:
            if entries[key].is_there(view.head.now):
                page.append(entries[key])
                if len(page) > limit:
                    break
        return KeyPage(tuple(page[:limit]), version, len(page) > limit)

    async def snapshot(
        self, principal: Principal, scope: ContextScope, label: str
    ) -> tuple[Snapshot, Sequence[str]]:
        """Take a snapshot; also returns the labels that were dropped for it. CWM-3007 if the label is in use."""
        require_label(label)
        with self.tracer.span("context_snapshot"), self.meter.operation("context_snapshot"):
            return await self.index.take_snapshot(scope, label, principal.subject, self.limits.snapshots)

    async def restore(self, principal: Principal, scope: ContextScope, label: str) -> Restored:
        """Set every key back to its value in the snapshot, in one write. CWM-2006 if the snapshot is unknown.

        CWM-3007 if a key is immutable, or if other writers change the scope all the time.
        """
        with self.tracer.span("context_restore"), self.meter.operation("context_restore"):
            snapshot = await self._snapshot(scope, label)
            for _ in range(_MAX_RESTORE_ATTEMPTS):
                target = {entry.key: entry for entry in await self.index.state(scope, snapshot.version)}
                view = await self.views.now(scope)
                writes = difference(
                    target,
                    {key: entry for key, entry in view.entries.items() if entry.is_there(view.head.now)},
                )
                if not writes:
                    return Restored(snapshot, view.head.version, 0, 0)
                result = await self._try_to_write(scope, writes, principal.subject, at=view.head.version)
                if result is not None:
                    deleted = sum(write.digest is None for write in writes)
                    return Restored(snapshot, result.head.version, len(writes) - deleted, deleted)
        raise ContextConflictError(
            "Other writers change this scope all the time: nothing was restored.", label=label, reason="busy"
        )

    async def named_scopes(self, principal: Principal) -> Sequence[ContextScope]:
        """The scopes of the tenant and its workspaces that were ever written. Those of single agents are theirs alone."""
        return [scope for scope in await self.index.scopes(principal.tenant) if scope.is_named]

    async def stats(self, scope: ContextScope) -> ContextStats:
        """Figures of the scope, of its tenant and of this process."""
        view = await self.views.now(scope)
        entries = [entry for entry in view.entries.values() if entry.is_there(view.head.now)]
        cache = self.contents.cache
        return ContextStats(
            version=view.head.version,
            oldest_version=view.head.floor,
            keys=len(entries),
            value_bytes=sum(entry.size for entry in entries),
            snapshots=tuple(await self.index.snapshots(scope)),
            tenant_bytes=await self.contents.store.used_bytes(scope.tenant),
            tenant_quota_bytes=self.quota_bytes,
            memory_bytes=cache.used_bytes,
            memory_limit_bytes=cache.limit_bytes,
            eviction=cache.eviction,
            cached=len(cache),
            hot=cache.hot,
            counts=cache.counts,
            loads=self.contents.loaded,
        )

    async def forget(self, scope: ContextScope) -> None:
        """Delete the scope, because its agent session has ended."""
        await self.index.forget(scope)
        self.views.forget(scope)

    async def _entry(
        self, scope: ContextScope, key: str, version: int | None, snapshot: str | None
    ) -> tuple[int, Entry | None]:
        if version is not None and snapshot is not None:
            raise InvalidParameterError("version or snapshot, not both.", field="version")
        if snapshot is None and version is None:
            return await self.views.entry(scope, key)
        head = await self.index.head(scope)
        if version is None:
            version = (await self._snapshot(scope, snapshot or "")).version
        elif not head.floor <= version <= head.version:
            raise InvalidParameterError(
                "version: there is no such version of the scope any more, or not yet.",
                field="version",
                oldest_version=head.floor,
                current_version=head.version,
            )
        if (state := self.views.past(scope, version)) is not None:
            entry = state.get(key)
            return version, entry if entry is not None and entry.is_there(head.now) else None
        return version, await self.index.past(scope, key, version)

    async def _state(self, scope: ContextScope, version: int) -> Mapping[str, Entry]:
        if (state := self.views.past(scope, version)) is not None:
            return state
        return {entry.key: entry for entry in await self.index.state(scope, version)}

    async def _snapshot(self, scope: ContextScope, label: str) -> Snapshot:
        for snapshot in await self.index.snapshots(scope):
            if snapshot.label == label:
                return snapshot
        raise SnapshotNotFoundError("There is no such snapshot in this scope.", label=label[:64])

    async def _write(
        self, scope: ContextScope, writes: Sequence[Write], author: str, new: Bytes | None = None
    ) -> Written:
        result = await self._try_to_write(scope, writes, author, new)
        if result is None:
            raise AssertionError("only a write at a version can come too late")
        return result

    async def _try_to_write(
        self,
        scope: ContextScope,
        writes: Sequence[Write],
        author: str,
        new: Bytes | None = None,
        *,
        at: int | None = None,
    ) -> Written | None:
        """Write, and publish the change even if the caller is cancelled. None if the scope is not at version ``at``."""
        return await to_its_end(self._write_and_publish(scope, writes, author, new, at))

    async def _write_and_publish(
        self, scope: ContextScope, writes: Sequence[Write], author: str, new: Bytes | None, at: int | None
    ) -> Written | None:
        result = await self.index.write(scope, writes, author, new=new, at=at, keep=self.limits.versions)
        if result is not None:
            for digest in result.gone:
                await self.contents.gone(scope.tenant, digest)
            keys = [entry.key for entry in result.entries]
            if len(keys) <= _MAX_NOTIFICATIONS:
                for key in keys:
                    await self._publish(scope, uri_of(scope.name, key))
            else:
                await self._publish(scope, uri_of(scope.name, _common_prefix(keys)) + ANY_SUFFIX)
        return result

    async def _publish(self, scope: ContextScope, uri: str) -> None:
        if scope.name == ANSWERS:
            return
        private_to = scope.key.partition(":")[2] if scope.is_private else None
        await self.changes.publish(
            Change(ChangeKind.RESOURCE, uri, tenant=scope.tenant, private_to=private_to)
        )


async def _parsed(value: bytes) -> Any:
    return await aside(len(value), lambda: recorded(value))


def _common_prefix(keys: Sequence[str]) -> str:
    """The common prefix of all keys."""
    first, last = min(keys), max(keys)
    pairs = zip(first, last, strict=False)
    return first[: next((n for n, (one, other) in enumerate(pairs) if one != other), len(first))]
