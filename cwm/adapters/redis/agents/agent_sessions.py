"""Agent sessions that several gateways share: one hash per key, which expires when it is idle.

Its fields are ``owner`` and ``=<name>`` for each stored name. State that must outlast it is copied to a second hash
with the same fields; a sorted set has the keys by expiry, so that a gateway later finds the expired ones.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final
from uuid import uuid4

import redis.asyncio as redis

from cwm.adapters.redis import connection
from cwm.adapters.redis.agents.recently_seen import RecentlySeen
from cwm.adapters.redis.keys import ended_key, key_of_every_tenant, left_key, session_key
from cwm.domain.principal import Principal

_DUE: Final = "agent-sessions-due"
_AT_ONCE: Final = 1000
# After this time without a look, no gateway is expected to collect the state.
_LEFT_FOR_MS: Final = 7 * 24 * 3600 * 1000
# Longer than a client retries.
_ENDED_MS: Final = 20_000

_NOW: Final = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
"""
_BEGIN: Final = """
redis.call('HSET', KEYS[1], 'owner', ARGV[1])
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
"""
_TOUCH: Final = """
if redis.call('HGET', KEYS[1], 'owner') ~= ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
"""
# A retry after a lost response succeeds again: the caller that ended the session closes what it had open.
_END: Final = """
local ended = redis.call('DEL', KEYS[1])
redis.call('DEL', KEYS[2])
redis.call('ZREM', KEYS[3], ARGV[1])
if ended == 1 then redis.call('SET', KEYS[4], ARGV[2], 'PX', ARGV[3]) end
return ended == 1 or redis.call('GET', KEYS[4]) == ARGV[2]
"""
_REMEMBER: Final = (
    _NOW
    + """
if ARGV[6] == '0' and redis.call('EXISTS', KEYS[1]) == 0 then return false end
local kept = redis.call('HGET', KEYS[1], ARGV[1])
if not kept or (ARGV[4] == '1' and kept == ARGV[5]) then
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
  kept = ARGV[2]
end
redis.call('PEXPIRE', KEYS[1], ARGV[3])
if ARGV[7] == '1' then
  redis.call('HSET', KEYS[2], ARGV[1], kept)
  redis.call('PEXPIRE', KEYS[2], ARGV[3] + ARGV[8])
  redis.call('ZADD', KEYS[3], now + ARGV[3], ARGV[9])
end
return kept
"""
)
_ABANDONED: Final = (
    _NOW
    + """
local found = {}
for _, key in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, ARGV[1])) do
  local left = ARGV[3] .. key
  local lasts = redis.call('PTTL', ARGV[2] .. key)
  if lasts > 0 then
    redis.call('ZADD', KEYS[1], now + lasts, key)
    redis.call('PEXPIRE', left, lasts + ARGV[4])
  else
    found[#found + 1] = {key, redis.call('HGETALL', left)}
    redis.call('DEL', left)
    redis.call('ZREM', KEYS[1], key)
  end
end
return found
"""
)
_ADD: Final = """
if redis.call('EXISTS', KEYS[1]) == 0 then return false end
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return redis.call('HINCRBY', KEYS[1], ARGV[1], ARGV[2])
"""
_RECALL: Final = """
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return redis.call('HGETALL', KEYS[1])
"""
_FORGET: Final = """
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('HDEL', KEYS[2], ARGV[1])
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
"""
_reading: Final = partial(connection.reading, "The store of agent sessions")
_writing: Final = partial(connection.writing, "The store of agent sessions")


class RedisAgentSessions:
    """The port ``AgentSessions`` on Redis; ``recent`` saves a request for a session seen a moment ago."""

    def __init__(self, client: redis.Redis, ttl_seconds: float, recent: RecentlySeen | None = None) -> None:
        self._client = client
        self._recent = recent
        self._ttl_ms = max(1, round(ttl_seconds * 1000))
        self._begin = client.register_script(_BEGIN)
        self._touch = client.register_script(_TOUCH)
        self._end = client.register_script(_END)
        self._remember = client.register_script(_REMEMBER)
        self._add = client.register_script(_ADD)
        self._recall = client.register_script(_RECALL)
        self._forget = client.register_script(_FORGET)
        self._abandoned = client.register_script(_ABANDONED)

    @property
    def outlives_us(self) -> bool:
        return True

    async def begin(self, owner: Principal) -> str:
        session_id = uuid4().hex
        async with _writing():
            await self._begin(keys=[session_key(session_id)], args=[_written(owner), self._ttl_ms])
        return session_id

    async def touch(self, session_id: str, owner: Principal) -> bool:
        recent = self._recent
        if recent is not None and recent.knows(session_id, owner):
            return True
        ends = 0 if recent is None else recent.ends()
        async with _reading():
            known = bool(
                await self._touch(keys=[session_key(session_id)], args=[_written(owner), self._ttl_ms])
            )
        if known and recent is not None:
            recent.seen(session_id, owner, ends)
        return known

    async def end(self, session_id: str) -> bool:
        async with _writing():
            return bool(
                await self._end(
                    keys=[
                        session_key(session_id),
                        left_key(session_id),
                        key_of_every_tenant(_DUE),
                        ended_key(session_id),
                    ],
                    args=[session_id, uuid4().hex, _ENDED_MS],
                )
            )

    async def alive(self, key: str) -> bool:
        async with _reading():
            return bool(await self._client.exists(session_key(key)))

    async def remember(
        self,
        key: str,
        name: str,
        value: str,
        *,
        instead_of: str | None = None,
        anew: bool = False,
        leaves: bool = False,
    ) -> str | None:
        replaces = ["0", ""] if instead_of is None else ["1", instead_of]
        may = int(anew), int(leaves)
        async with _writing():
            stored = await self._remember(
                keys=[session_key(key), left_key(key), key_of_every_tenant(_DUE)],
                args=[_field(name), value, self._ttl_ms, *replaces, *may, _LEFT_FOR_MS, key],
            )
        return None if stored is None else str(stored)

    async def recall(self, key: str) -> Mapping[str, str]:
        async with _reading():
            flat = await self._recall(keys=[session_key(key)], args=[self._ttl_ms])
        return _remembered(flat)

    async def add(self, key: str, name: str, amount: int) -> int | None:
        async with _writing():
            count = await self._add(keys=[session_key(key)], args=[_field(name), amount, self._ttl_ms])
        return None if count is None else int(count)

    async def forget(self, key: str, name: str) -> None:
        async with _writing():
            await self._forget(keys=[session_key(key), left_key(key)], args=[_field(name), self._ttl_ms])

    async def abandoned(self) -> Sequence[tuple[str, Mapping[str, str]]]:
        async with _writing():
            abandoned = await self._abandoned(
                keys=[key_of_every_tenant(_DUE)],
                args=[_AT_ONCE, session_key(""), left_key(), _LEFT_FOR_MS],
            )
        return [(key, _remembered(flat)) for key, flat in abandoned if flat]


def _remembered(flat: Sequence[str]) -> dict[str, str]:
    fields = zip(flat[::2], flat[1::2], strict=True)
    return {name.removeprefix("="): value for name, value in fields if name.startswith("=")}


def _field(name: str) -> str:
    return f"={name}"


def _written(owner: Principal) -> str:
    """A text that is unique to the principal."""
    return json.dumps([owner.tenant, owner.subject])
