"""Stored results over a real database, as one gateway or several have them."""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from cwm.adapters.redis.connection import connect
from cwm.adapters.redis.context.results import RedisResultRecords
from cwm.adapters.sql.context.results import SqlResultRecords
from cwm.adapters.sql.database import open_database
from cwm.domain.cursor import Cursors
from cwm.domain.errors import StorageWriteError
from cwm.domain.principal import Principal
from cwm.domain.results import Part, PartKind, StoredResult
from cwm.domain.tool_policy import ToolPolicy
from cwm.ports.results import ResultRecords
from cwm.services.contents.contents import SharedContents
from cwm.services.results.results import Results
from tests.services.context_of import replica
from tests.services.replicas_of import HandClock

ANN, BOB, EVE = Principal("acme", "ann"), Principal("acme", "bob"), Principal("other", "ann")
POLICY = ToolPolicy(preview_tokens=100, result_ttl_seconds=3_600.0)


class FourBytesAToken:
    """Counts so that a test can tell by hand what fits."""

    def count(self, text: str) -> int:
        return math.ceil(len(text.encode()) / 4)


@dataclass(frozen=True, slots=True)
class Desk:
    """One gateway's stored results, and the clock that all of them look at."""

    results: Results
    clock: HandClock

    async def keep(
        self, *bodies: str | bytes, principal: Principal = ANN, policy: ToolPolicy = POLICY
    ) -> StoredResult:
        parts = [part_of(body) for body in bodies]
        return await self.results.keep(principal, "docs_read", "a1", parts, policy)

    def with_(self, **changed: Any) -> Desk:
        """The same results by a gateway of which this is another."""
        return Desk(replace(self.results, **changed), self.clock)


def part_of(body: str | bytes) -> Part:
    if isinstance(body, bytes):
        return Part(PartKind.BINARY, "image/png", body)
    if body.startswith(("{", "[")):
        return Part(PartKind.JSON, "application/json", body.encode())
    return Part(PartKind.TEXT, "text/plain", body.encode())


def desk(records: ResultRecords, contents: SharedContents, clock: HandClock) -> Desk:
    cursors, ttl = Cursors([b"a secret"]), timedelta(seconds=600)
    return Desk(Results(records, contents, FourBytesAToken(), cursors, clock, None, ttl), clock)


@asynccontextmanager
async def opened(url: str, sqlite_url: str, clock: HandClock) -> AsyncIterator[Desk]:
    """On the Redis or the database of ``url``."""
    async with replica(url, sqlite_url, clock=clock) as shared, _records(url) as records:
        yield desk(records, shared.contents, clock)


@asynccontextmanager
async def _records(url: str) -> AsyncIterator[ResultRecords]:
    if url.startswith("redis"):
        client = connect(url)
        yield RedisResultRecords(client)
        await client.aclose()
    else:
        database = open_database(url)
        yield SqlResultRecords(database)
        await database.dispose()


@dataclass(frozen=True, slots=True)
class FullContents:
    """Takes nothing any more."""

    async def keep(self, tenant: str, plain: bytes, holder: str, expires_at: datetime | None) -> str:
        raise StorageWriteError("The store is full.")

    async def read(self, tenant: str, digest: str) -> bytes | None:
        return None

    async def let_go(self, tenant: str, digest: str, holder: str) -> None:
        """There is nothing to let go of."""


@dataclass(slots=True)
class AwayOnce:
    """Records that cannot be written the first time, and do not answer after the second."""

    records: ResultRecords
    away: bool = True
    forgotten: asyncio.Event = field(default_factory=asyncio.Event)

    async def expired_of_every_tenant(self, at: datetime, limit: int) -> list[StoredResult]:
        return await self.records.expired_of_every_tenant(at, limit)

    async def forget(self, result: StoredResult) -> None:
        if self.away:
            self.away = False
            raise StorageWriteError("The store is away.")
        await self.records.forget(result)
        self.forgotten.set()
        await asyncio.Event().wait()


@dataclass(slots=True)
class InMemory:
    """One result and its contents, without a database in the way of many examples."""

    kept: StoredResult | None = None
    bodies: dict[str, bytes] = field(default_factory=dict)

    def desk(self) -> Desk:
        records: Any = _OneRecord(self)
        contents: Any = _Bodies(self)
        return desk(records, contents, HandClock(4_000_000_000.0))


@dataclass(frozen=True, slots=True)
class _OneRecord:
    memory: InMemory

    async def keep(self, result: StoredResult, quota_bytes: int | None) -> bool:
        self.memory.kept = result
        return True

    async def find(self, tenant: str, handle: str) -> StoredResult | None:
        return self.memory.kept


@dataclass(frozen=True, slots=True)
class _Bodies:
    memory: InMemory

    async def keep(self, tenant: str, plain: bytes, holder: str, expires_at: datetime | None) -> str:
        digest = hashlib.sha256(plain).hexdigest()
        self.memory.bodies[digest] = plain
        return digest

    async def read(self, tenant: str, digest: str) -> bytes | None:
        return self.memory.bodies.get(digest)
