"""Records of stored results that several gateways share.

Three kinds of keys: a JSON record per result; per owner a sorted set of ``<handle>:<size>``; and one sorted set of the
keys of all records. Both sets are ordered by expiry. A record outlives its result by a day, so that a sweep can read it.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

import redis.asyncio as redis

from cwm.adapters.redis import connection
from cwm.adapters.redis.keys import key_of_every_tenant, tenant_key
from cwm.domain.results import PartKind, ResultUse, StoredPart, StoredResult

_DUE: Final = key_of_every_tenant("results-due")
_KEPT_LONGER: Final = timedelta(days=1)

_SUM: Final = """
local used, count = 0, 0
for _, member in ipairs(redis.call('ZRANGEBYSCORE', owned, '(' .. at, '+inf')) do
  used, count = used + tonumber(string.match(member, ':(%d+)$')), count + 1
end
"""
_KEEP: Final = f"""
local owned, at = KEYS[2], ARGV[3]
-- Kept already: the answer to that was lost.
if ARGV[5] ~= '' and redis.call('GET', KEYS[1]) ~= ARGV[1] then
  {_SUM}
  if used + tonumber(ARGV[4]) > tonumber(ARGV[5]) then return 0 end
end
redis.call('SET', KEYS[1], ARGV[1], 'PXAT', ARGV[8])
redis.call('ZADD', owned, ARGV[2], ARGV[6])
redis.call('PEXPIREAT', owned, ARGV[8], 'NX')
redis.call('PEXPIREAT', owned, ARGV[8], 'GT')
redis.call('ZADD', KEYS[3], ARGV[2], ARGV[7])
return 1
"""
_USE: Final = f"local owned, at = KEYS[1], ARGV[1]{_SUM}return {{count, used}}"
_FORGET: Final = """
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('ZREM', KEYS[3], ARGV[2])
return redis.call('DEL', KEYS[1])
"""
_reading: Final = partial(connection.reading, "The store of results")
_writing: Final = partial(connection.writing, "The store of results")


class RedisResultRecords:
    """The port ``ResultRecords`` on Redis or Valkey."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._keep = client.register_script(_KEEP)
        self._use = client.register_script(_USE)
        self._forget = client.register_script(_FORGET)

    async def keep(self, result: StoredResult, quota_bytes: int | None) -> bool:
        args: list[str | int] = [
            _written(result),
            _ms(result.expires_at),
            _ms(result.created_at),
            result.size,
            "" if quota_bytes is None else quota_bytes,
            _owned(result),
            _record(result.tenant, result.handle),
            _ms(result.expires_at + _KEPT_LONGER),
        ]
        async with _writing():
            return bool(await self._keep(keys=_keys(result), args=args))

    async def find(self, tenant: str, handle: str) -> StoredResult | None:
        async with _reading():
            record = await self._client.get(_record(tenant, handle))
        return None if record is None else _result_of(str(record))

    async def use(self, tenant: str, owner: str, at: datetime) -> ResultUse:
        async with _reading():
            count, size = await self._use(keys=[_owner_key(tenant, owner)], args=[_ms(at)])
        return ResultUse(int(count), int(size))

    async def of_owner(
        self, tenant: str, owner: str, after: StoredResult | None = None, limit: int = 100
    ) -> list[StoredResult]:
        key, last = _owner_key(tenant, owner), "+inf"
        members: list[Any] = []
        async with _reading():
            if after is not None:
                at = _ms(after.expires_at)
                same = await self._client.zrange(key, at, at, desc=True, byscore=True)
                members, last = [each for each in same if str(each) < _owned(after)][:limit], f"({at}"
            members += await self._client.zrange(
                key, last, "-inf", desc=True, byscore=True, offset=0, num=limit
            )
            keys = [_record(tenant, str(member).partition(":")[0]) for member in members[:limit]]
            records = await self._client.mget(keys) if keys else []
        return [_result_of(str(record)) for record in records if record is not None]

    async def expired_of_every_tenant(self, at: datetime, limit: int) -> list[StoredResult]:
        async with _reading():
            members = await self._client.zrange(_DUE, "-inf", _ms(at), byscore=True, offset=0, num=limit)
            due = [str(key) for key in members]
            records = await self._client.mget(due) if due else []
        expired_keys = [key for key, record in zip(due, records, strict=True) if record is None]
        if expired_keys:
            async with _writing():
                await self._client.zrem(_DUE, *expired_keys)
        return [_result_of(str(record)) for record in records if record is not None]

    async def forget(self, result: StoredResult) -> None:
        args = [_owned(result), _record(result.tenant, result.handle)]
        async with _writing():
            await self._forget(keys=_keys(result), args=args)


def _keys(result: StoredResult) -> list[str]:
    return [_record(result.tenant, result.handle), _owner_key(result.tenant, result.owner), _DUE]


def _record(tenant: str, handle: str) -> str:
    return tenant_key("result", tenant, handle)


def _owner_key(tenant: str, owner: str) -> str:
    return tenant_key("results-of", tenant, owner)


def _owned(result: StoredResult) -> str:
    return f"{result.handle}:{result.size}"


def _ms(at: datetime) -> int:
    return round(at.timestamp() * 1000)


def _written(result: StoredResult) -> str:
    times = {"created_at": result.created_at.isoformat(), "expires_at": result.expires_at.isoformat()}
    return json.dumps({**asdict(result), **times})


def _result_of(record: str) -> StoredResult:
    values: dict[str, Any] = json.loads(record)
    parts = tuple(StoredPart(**{**part, "kind": PartKind(part["kind"])}) for part in values.pop("parts"))
    for name in ("created_at", "expires_at"):
        values[name] = datetime.fromisoformat(values[name]).astimezone(UTC)
    return StoredResult(**values, parts=parts)
