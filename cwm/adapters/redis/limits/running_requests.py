"""Running requests of several gateways: one sorted set per limit, with the requests by expiry.

A gateway renews its own requests while they run; those of a gateway that died expire.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import Final

import redis.asyncio as redis

from cwm.adapters.redis.connection import told_as
from cwm.adapters.redis.keys import digest_key
from cwm.domain.errors import StorageWriteError
from cwm.domain.limits import Place

_LAPSE_SECONDS: Final = 60
_RENEW_SECONDS: Final = 15

_NOW: Final = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
"""
_BEGIN: Final = (
    _NOW
    + """
for at, key in ipairs(KEYS) do
  redis.call('ZREMRANGEBYSCORE', key, '-inf', now)
  if redis.call('ZCARD', key) >= tonumber(ARGV[at + 2]) then return at end
end
for _, key in ipairs(KEYS) do
  redis.call('ZADD', key, now + ARGV[2], ARGV[1])
  redis.call('PEXPIRE', key, ARGV[2])
end
return 0
"""
)
_RENEW: Final = (
    _NOW
    + """
for at, key in ipairs(KEYS) do
  redis.call('ZADD', key, 'XX', now + ARGV[1], ARGV[at + 1])
  redis.call('PEXPIRE', key, ARGV[1])
end
"""
)


class RedisRunningRequests:
    def __init__(self, client: redis.Redis, lapse_seconds: float = _LAPSE_SECONDS) -> None:
        self._client = client
        self._lapse_ms = round(lapse_seconds * 1000)
        self._begin = client.register_script(_BEGIN)
        self._renew = client.register_script(_RENEW)
        self._running: dict[str, Sequence[Place]] = {}

    async def begin(self, request: str, places: Sequence[Place]) -> Place | None:
        most = [place.most for place in places]
        async with _writing():
            full = int(
                await self._begin(keys=[_key(p) for p in places], args=[request, self._lapse_ms, *most])
            )
        if full:
            return places[full - 1]
        self._running[request] = places
        return None

    async def end(self, request: str, places: Sequence[Place]) -> None:
        self._running.pop(request, None)
        async with _writing(), self._client.pipeline(transaction=False) as pipeline:
            for place in places:
                pipeline.zrem(_key(place), request)
            await pipeline.execute()

    async def keep(self) -> None:
        """Renew this gateway's requests until cancelled, four times per lifetime."""
        while True:
            await asyncio.sleep(_RENEW_SECONDS)
            with suppress(StorageWriteError):
                await self.renew()

    async def renew(self) -> None:
        held = [(_key(place), request) for request, places in self._running.items() for place in places]
        if held:
            keys, requests = zip(*held, strict=True)
            async with _writing():
                await self._renew(keys=keys, args=[self._lapse_ms, *requests])


def _key(place: Place) -> str:
    return digest_key("running", place.key)


def _writing() -> AbstractAsyncContextManager[None]:
    return told_as(StorageWriteError, "The store of running requests cannot be written; try again soon.")
