"""Shared context without a face, as replicas have it over one store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from cwm.adapters.memory.changes import InProcessChanges
from cwm.adapters.redis.connection import connect
from cwm.adapters.redis.context.contents import RedisContentStore
from cwm.adapters.redis.context.index import RedisContextIndex
from cwm.adapters.sql.audit.log import SqlAuditLog
from cwm.adapters.sql.context.contents import SqlContentStore
from cwm.adapters.sql.context.index import SqlContextIndex
from cwm.adapters.sql.database import open_database
from cwm.adapters.telemetry.prometheus import PrometheusMeter
from cwm.domain.audit_chain import ChainKeys
from cwm.domain.principal import Principal
from cwm.domain.shared_context import ContextScope, scope_of
from cwm.ports.content_store import ContentStore
from cwm.services.contents.cache import ContentCache
from cwm.services.contents.contents import SharedContents
from cwm.services.context.requests import ContextLimits, Setting
from cwm.services.context.shared_context import SharedContext
from cwm.services.context.views import ContextViews
from tests.services.replicas_of import HandClock

ANN, BOB = Principal("acme", "ann"), Principal("acme", "bob")
TENANT = scope_of("acme", "s1", "tenant")
MEGABYTE = 2**20


@dataclass(frozen=True, slots=True)
class Replica:
    context: SharedContext
    contents: SharedContents
    store: ContentStore
    audit: SqlAuditLog
    meter: PrometheusMeter

    async def set(self, key: str, value: Any, scope: ContextScope = TENANT, **given: Any) -> int:
        """The version that it made."""
        return (await self.context.set(ANN, scope, Setting(key, value, **given))).version

    async def get(self, key: str, scope: ContextScope = TENANT, **given: Any) -> Any:
        return (await self.context.get(scope, key, **given)).value


@asynccontextmanager
async def replica(
    url: str,
    sqlite_url: str,
    changes: InProcessChanges | None = None,
    clock: HandClock | None = None,
    *,
    memory: int = 100 * MEGABYTE,
    quota: int | None = None,
    limits: ContextLimits | None = None,
) -> AsyncIterator[Replica]:
    """On the Redis or the database of ``url``, with its audit log in the one of ``sqlite_url``."""
    clock, changes = clock or HandClock(4_000_000_000.0), changes or InProcessChanges()
    registry = open_database(sqlite_url)
    client = connect(url) if url.startswith("redis") else None
    database = registry if client or url == sqlite_url else open_database(url)
    if client is not None:
        store, index = RedisContentStore(client, clock), RedisContextIndex(client, clock)
    else:
        store, index = SqlContentStore(database, clock), SqlContextIndex(database, clock)  # type: ignore[assignment]
    audit, meter = SqlAuditLog(registry, ChainKeys([b"a secret"])), PrometheusMeter()
    cache = ContentCache(memory)
    contents = SharedContents(store, cache, changes, audit, meter, clock, quota_bytes=quota)
    views = ContextViews(index, memory // 2, cache.reserve)
    context = SharedContext(index, contents, views, changes, meter, clock, limits or ContextLimits(), quota)
    try:
        yield Replica(context, contents, store, audit, meter)
    finally:
        contents.close()
        if client is not None:
            await client.aclose()
        if database is not registry:
            await database.dispose()
        await registry.dispose()
