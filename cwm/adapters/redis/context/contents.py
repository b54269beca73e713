"""Contents that several gateways share, in Redis or Valkey."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import Final

import redis.asyncio as redis
from redis.client import NEVER_DECODE

from cwm.adapters.redis import connection
from cwm.adapters.redis.context import content_scripts
from cwm.adapters.redis.keys import room, tenant_key
from cwm.domain.contents import over_quota
from cwm.ports.clock import Clock
from cwm.ports.content_store import Content

_SWEPT_AT_ONCE: Final = 256
reading = partial(connection.reading, "The shared store")
writing = partial(connection.writing, "The shared store")


class RedisContentStore:
    """The port ``ContentStore``. Redis's own clock decides what has ended, or ``clock``."""

    def __init__(self, client: redis.Redis, clock: Clock | None = None) -> None:
        self._client = client
        self._clock = clock
        self._put = client.register_script(content_scripts.PUT)
        self._hold = client.register_script(content_scripts.HOLD)
        self._end = client.register_script(content_scripts.END)
        self._release = client.register_script(content_scripts.RELEASE)
        self._drop = client.register_script(content_scripts.DROP)
        self._sweep = client.register_script(content_scripts.SWEEP)

    async def put(
        self,
        tenant: str,
        digest: str,
        stored: bytes,
        holder: str,
        expires_at: datetime | None,
        quota_bytes: int | None,
    ) -> None:
        quota = -1 if quota_bytes is None else quota_bytes
        async with writing():
            used = int(
                await self._put(
                    args=[room(tenant), digest, holder, ending(expires_at), quota, self._now(), stored]
                )
            )
        if used >= 0 and quota_bytes is not None:
            raise over_quota(used, len(stored), quota_bytes)

    async def hold(self, tenant: str, digest: str, holder: str, expires_at: datetime | None) -> bool:
        async with writing():
            return bool(
                await self._hold(args=[room(tenant), digest, holder, ending(expires_at), self._now()])
            )

    async def get(self, tenant: str, digest: str) -> Content | None:
        key = tenant_key("content", tenant, digest)
        async with reading():
            end = str(await self._end(args=[room(tenant), digest, self._now()]))
            if not end:
                return None
            stored = await self._client.execute_command(  # type: ignore[no-untyped-call]
                "GET", key, **{NEVER_DECODE: True}
            )
        if stored is None:
            return None
        return Content(stored, None if end == "inf" else datetime.fromtimestamp(float(end) / 1000, UTC))

    async def release(self, tenant: str, digest: str, holder: str) -> bool:
        async with writing():
            return bool(await self._release(args=[room(tenant), digest, holder, self._now()]))

    async def drop(self, tenant: str, digest: str, stored: bytes) -> bool:
        async with writing():
            return bool(await self._drop(args=[room(tenant), digest, stored]))

    async def used_bytes(self, tenant: str) -> int:
        async with reading():
            return int(await self._client.get(tenant_key("content-bytes", tenant)) or 0)

    async def vacuum_of_every_tenant(self) -> int:
        deleted = 0
        async with writing():
            for each_room in await self._client.smembers(content_scripts.TENANTS_KEY):
                while sweep_count := int(await self._sweep(args=[each_room, self._now(), _SWEPT_AT_ONCE])):
                    deleted += sweep_count
        return deleted

    def _now(self) -> str:
        return "" if self._clock is None else str(milliseconds(self._clock.now()))


def milliseconds(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


def ending(expires_at: datetime | None) -> str:
    """The score of a hold: its end in milliseconds, or infinity."""
    return "+inf" if expires_at is None else str(milliseconds(expires_at))
