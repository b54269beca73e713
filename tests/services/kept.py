"""Stored results over a real database, as one gateway or several have them."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from cwm.domain.cursor import Cursors
from cwm.domain.principal import Principal
from cwm.domain.results import Part, PartKind, StoredResult
from cwm.domain.tool_policy import ToolPolicy
from cwm.ports.contents import Contents
from cwm.ports.results import ResultRecords
from cwm.services.results import Results
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


def part_of(body: str | bytes) -> Part:
    if isinstance(body, bytes):
        return Part(PartKind.BINARY, "image/png", body)
    if body.startswith(("{", "[")):
        return Part(PartKind.JSON, "application/json", body.encode())
    return Part(PartKind.TEXT, "text/plain", body.encode())


def desk(
    records: ResultRecords,
    contents: Contents,
    clock: HandClock,
    *,
    quota_bytes: int | None = None,
    secrets: tuple[bytes, ...] = (b"a secret",),
) -> Desk:
    results = Results(
        records,
        contents,
        FourBytesAToken(),
        Cursors(secrets),
        clock,
        quota_bytes,
        timedelta(seconds=600),
    )
    return Desk(results, clock)


@dataclass(slots=True)
class DictContents:
    """Contents in a dictionary, which a test can look into and break."""

    bodies: dict[tuple[str, str], bytes] = field(default_factory=dict)
    holders: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    broken: Exception | None = None

    async def keep(self, tenant: str, plain: bytes, holder: str, expires_at: datetime | None) -> str:
        if self.broken is not None:
            raise self.broken
        digest = hashlib.sha256(plain).hexdigest()
        self.bodies[tenant, digest] = plain
        self.holders.setdefault((tenant, digest), set()).add(holder)
        return digest

    async def read(self, tenant: str, digest: str) -> bytes | None:
        return self.bodies.get((tenant, digest))

    async def let_go(self, tenant: str, digest: str, holder: str) -> None:
        holders = self.holders.get((tenant, digest), set())
        holders.discard(holder)
        if not holders:
            self.bodies.pop((tenant, digest), None)
            self.holders.pop((tenant, digest), None)
