"""Storage: how much of what was said may be kept of one user and of one tenant."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from cwm.domain.errors import StorageQuotaExceededError
from cwm.domain.limits import Level
from cwm.domain.notation import size
from cwm.ports.clock import Clock
from cwm.ports.stored_bytes import StoredBytes
from cwm.services.access.limits import Limits

_KNOWN_SECONDS: Final = 2.0
_RESTS: Final = 20
"""A sum is read again after this many times the time that reading it took, at the earliest."""
_MOST_TENANTS: Final = 1_000
_SETTINGS: Final = {Level.PRINCIPAL: "CWM_STORED_PRINCIPAL_GB", Level.TENANT: "CWM_STORED_TENANT_GB"}
_WHOSE: Final = {Level.PRINCIPAL: "user", Level.TENANT: "tenant"}


@dataclass(frozen=True, slots=True)
class _Sums:
    by_owner: Mapping[str, int]
    until: float
    at: float


@dataclass(slots=True)
class Storage:
    """Sums are read every two seconds at most: what is stored meanwhile may exceed a quota by that much."""

    records: StoredBytes
    limits: Limits
    clock: Clock
    _known: dict[str, _Sums] = field(default_factory=dict)
    _reading: dict[str, asyncio.Task[_Sums]] = field(default_factory=dict)

    async def require_room(self, tenant: str, owner: str) -> None:
        """CWM-4003 where the owner, or its tenant, has used up its quota. CWM-4002."""
        if all(most is None for _, most in self.quotas()):
            return
        sums = await self._sums(tenant)
        if self._over(sums, owner) is not None and self.clock.monotonic() - sums.at >= _KNOWN_SECONDS:
            # Some of it may have been deleted.
            sums = await self._read(tenant)
        over = self._over(sums, owner)
        if over is not None:
            level, used, most = over
            raise StorageQuotaExceededError(
                f"What is stored of the conversations of this {_WHOSE[level]} takes {size(used)}, and the quota is "
                f"{size(most)} ({_SETTINGS[level]}): delete conversations, or let the operator keep them for less time.",
                level=level.value,
                used_bytes=used,
                quota_bytes=most,
                setting=_SETTINGS[level],
            )

    async def used(self, tenant: str, owner: str) -> dict[Level, int]:
        """The bytes of the owner, and of its tenant. CWM-4002."""
        return _used(await self._sums(tenant), owner)

    def forget(self) -> None:
        """Read the sums again."""
        self._known.clear()

    def quotas(self) -> tuple[tuple[Level, int | None], ...]:
        rules = self.limits.rules
        return (Level.PRINCIPAL, rules.stored_principal), (Level.TENANT, rules.stored_tenant)

    def _over(self, sums: _Sums, owner: str) -> tuple[Level, int, int] | None:
        used = _used(sums, owner)
        return next(
            (
                (level, used[level], most)
                for level, most in self.quotas()
                if most is not None and used[level] >= most
            ),
            None,
        )

    async def _sums(self, tenant: str) -> _Sums:
        known = self._known.get(tenant)
        return known if known and self.clock.monotonic() < known.until else await self._read(tenant)

    async def _read(self, tenant: str) -> _Sums:
        """One reading at a time, for all who ask for it."""
        reading = self._reading.get(tenant)
        if reading is None:
            reading = self._reading[tenant] = asyncio.create_task(self._read_now(tenant))
            reading.add_done_callback(lambda task: self._has_read(tenant, task))
        return await asyncio.shield(reading)

    async def _read_now(self, tenant: str) -> _Sums:
        began = self.clock.monotonic()
        by_owner = await self.records.by_owner(tenant)
        ended = self.clock.monotonic()
        if len(self._known) >= _MOST_TENANTS:
            self._known.clear()
        lasts = max(_KNOWN_SECONDS, _RESTS * (ended - began))
        sums = self._known[tenant] = _Sums(by_owner, ended + lasts, ended)
        return sums

    def _has_read(self, tenant: str, task: asyncio.Task[_Sums]) -> None:
        del self._reading[tenant]
        if not task.cancelled():
            # Who waits has the error; if all were cancelled, nobody else reads it.
            task.exception()


def _used(sums: _Sums, owner: str) -> dict[Level, int]:
    return {Level.PRINCIPAL: sums.by_owner.get(owner, 0), Level.TENANT: sum(sums.by_owner.values())}
