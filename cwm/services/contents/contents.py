"""Contents of the shared store, with a cache in this process's memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Final

from cwm.domain.audit import AuditEvent, Severity
from cwm.domain.changes import Change, ChangeKind
from cwm.domain.errors import CwmError, StorageCorruptionError
from cwm.domain.eviction import Facts
from cwm.ports.audit import AuditLog
from cwm.ports.changes import Changes
from cwm.ports.clock import Clock
from cwm.ports.content_store import Content, ContentStore
from cwm.ports.context_index import Bytes
from cwm.ports.meter import Meter
from cwm.services.contents.cache import NEVER, ContentCache, Key
from cwm.services.contents.form import digest_of, is_compressed, plain_form, plain_size, stored_form
from cwm.threads import aside

DEFAULT_PRIORITY: Final = 5
# For contents that were damaged and stored again meanwhile.
_LOADS: Final = 3


@dataclass(slots=True, eq=False)
class SharedContents:
    """Stores bytes under their SHA-256 for as long as somebody holds them: in the shared store first, then in memory.

    A holder is any name that is unique in its tenant, such as ``result:<handle>``. Every method raises CWM-4001 or
    CWM-4002 when the store is unavailable.

    Concurrent loads of one content share one load. Loaded contents are checked against their digest: one that does not
    match is dropped from the store, written to the audit log, counted, and never returned.
    """

    store: ContentStore
    cache: ContentCache
    changes: Changes
    audit: AuditLog
    meter: Meter
    clock: Clock
    compress_above: int = 1024
    quota_bytes: int | None = None
    loaded: int = 0
    """How many loads asked the shared store."""
    close: Callable[[], None] = field(init=False)
    _loading: dict[Key, asyncio.Task[bytes | None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.close = self.changes.subscribe(self._hear)

    async def keep(
        self,
        tenant: str,
        plain: bytes,
        holder: str,
        expires_at: datetime | None,
        *,
        priority: int = DEFAULT_PRIORITY,
    ) -> str:
        """Store ``plain`` for ``holder`` until ``expires_at`` (None: for ever), and return its digest, 64 hex digits.

        It returns once a crash cannot lose the bytes. Storing again for the same holder changes when its hold expires.
        Memory keeps a higher ``priority`` (0 to 10) longer. CWM-4003 over the quota.
        """
        digest = await aside(len(plain), lambda: digest_of(plain))
        key = (tenant, digest)
        if self.cache.facts(key) is not None and await self.store.hold(tenant, digest, holder, expires_at):
            self.cache.prolong(key, priority, _seconds(expires_at))
            return digest
        stored = await aside(len(plain), lambda: stored_form(plain, self.compress_above))
        await self.store.put(tenant, digest, stored, holder, expires_at, self.quota_bytes)
        self._add(key, plain, stored, priority, expires_at)
        return digest

    async def to_store(self, plain: bytes) -> Bytes:
        """The bytes and quota to pass to a write of the context index, which stores the content with its keys."""
        return await aside(
            len(plain),
            lambda: Bytes(digest_of(plain), stored_form(plain, self.compress_above), self.quota_bytes),
        )

    def was_stored(
        self, tenant: str, plain: bytes, new: Bytes, priority: int, expires_at: datetime | None
    ) -> None:
        """Cache a content that a write of the context index has stored."""
        key = (tenant, new.digest)
        if self.cache.facts(key) is not None:
            self.cache.prolong(key, priority, _seconds(expires_at))
        else:
            self._add(key, plain, new.stored, priority, expires_at)

    async def read(self, tenant: str, digest: str, *, priority: int = DEFAULT_PRIORITY) -> bytes | None:
        """The bytes; None when nobody holds them. ``priority`` counts if the content is not in memory yet."""
        key = (tenant, digest)
        if (plain := self.cache.plain(key, self._now())) is not None:
            return plain
        loading = self._loading.get(key)
        if loading is None:
            loading = self._loading[key] = asyncio.create_task(self._load(key, priority))
            loading.add_done_callback(lambda task: self._loaded(key, task))
        # If one caller is cancelled, the others still wait for the load.
        return await asyncio.shield(loading)

    async def let_go(self, tenant: str, digest: str, holder: str) -> None:
        """Remove the holder's hold. With the last one the bytes are deleted, and all replicas drop their copies."""
        if await self.store.release(tenant, digest, holder):
            await self.gone(tenant, digest)

    async def gone(self, tenant: str, digest: str) -> None:
        """The content left the store: all replicas drop their copies."""
        self.cache.drop((tenant, digest))
        await self.changes.publish(Change(ChangeKind.CONTENT, digest, tenant=tenant))

    def _add(self, key: Key, plain: bytes, stored: bytes, priority: int, expires_at: datetime | None) -> None:
        self.cache.add(key, plain, stored if is_compressed(stored) else None, priority, _seconds(expires_at))

    async def _load(self, key: Key, priority: int) -> bytes | None:
        warm = self.cache.stored(key, self._now())
        if warm is not None:
            plain = await aside(plain_size(warm), lambda: plain_form(warm, key[1]))
            if plain is not None:
                self.cache.counts.warm_hits += 1
                self._remember(key, plain, warm, None, priority)
                return plain
            self.cache.drop(key)
        self.cache.counts.misses += 1
        self.loaded += 1
        for _ in range(_LOADS):
            content = await self.store.get(*key)
            if content is None:
                break
            plain = await aside(plain_size(content.stored), partial(plain_form, content.stored, key[1]))
            if plain is not None:
                self._remember(key, plain, content.stored, content, priority)
                return plain
            if await self._drop_damaged(key, content.stored):
                break
        return None

    def _remember(
        self, key: Key, plain: bytes, stored: bytes, content: Content | None, priority: int
    ) -> None:
        """Cache it, unless it was deleted during the load."""
        if self._loading.get(key) is not asyncio.current_task():
            return
        facts = self.cache.facts(key) or Facts(priority=priority)
        ends_at = facts.ends_at if content is None else _seconds(content.ends_at)
        self.cache.add(key, plain, stored if is_compressed(stored) else None, facts.priority, ends_at)

    async def _drop_damaged(self, key: Key, stored: bytes) -> bool:
        """False if another replica dropped it first, or it was stored again."""
        tenant, digest = key
        self.meter.event("content_corrupted")
        if not await self.store.drop(tenant, digest, stored):
            return False
        await self.gone(tenant, digest)
        with suppress(CwmError):
            await self.audit.record(
                AuditEvent(
                    timestamp=self.clock.now(),
                    tenant=tenant,
                    subject="cwm",
                    event="content.drop",
                    outcome=StorageCorruptionError.code,
                    severity=Severity.ERROR,
                    details={"digest": digest},
                )
            )
        return True

    def _loaded(self, key: Key, task: asyncio.Task[bytes | None]) -> None:
        if self._loading.get(key) is task:
            del self._loading[key]
        if not task.cancelled():
            # Waiting callers have the exception; if all were cancelled, nobody else reads it.
            task.exception()

    def _hear(self, change: Change) -> None:
        if change.kind is ChangeKind.CONTENT and change.tenant is not None and change.uri is not None:
            key = (change.tenant, change.uri)
            self.cache.drop(key)
            self._loading.pop(key, None)

    def _now(self) -> float:
        return self.clock.now().timestamp()


def _seconds(moment: datetime | None) -> float:
    return NEVER if moment is None else moment.timestamp()
