"""Shared context that several gateways share, in Redis or Valkey."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import redis.asyncio as redis

from cwm.adapters.redis.context import scripts as context_scripts
from cwm.adapters.redis.context.contents import milliseconds, reading, writing
from cwm.adapters.redis.keys import room, tenant_prefix
from cwm.domain.contents import over_quota
from cwm.domain.errors import ContextConflictError
from cwm.domain.shared_context import (
    ContextScope,
    Entry,
    Head,
    Refusal,
    Snapshot,
    Write,
    conflict,
    scope_by_key,
)
from cwm.ports.clock import Clock
from cwm.ports.context_index import Bytes, Delta, Written


class RedisContextIndex:
    """The port ``ContextIndex``. Without ``clock``, Redis's own clock decides what has expired."""

    def __init__(self, client: redis.Redis, clock: Clock | None = None) -> None:
        self._client = client
        self._clock = clock
        self._head = client.register_script(context_scripts.HEAD)
        self._since = client.register_script(context_scripts.SINCE)
        self._past = client.register_script(context_scripts.PAST)
        self._state = client.register_script(context_scripts.STATE)
        self._write = client.register_script(context_scripts.WRITE)
        self._snapshot = client.register_script(context_scripts.SNAPSHOT)
        self._trim = client.register_script(context_scripts.TRIM)
        self._forget = client.register_script(context_scripts.FORGET)

    async def head(self, scope: ContextScope) -> Head:
        async with reading():
            return _head(await self._head(args=[_prefix(scope), self._now()]))

    async def since(self, scope: ContextScope, version: int) -> Delta:
        async with reading():
            head, rows, deleted, whole = await self._since(args=[_prefix(scope), self._now(), version])
        at = _head(head)
        deletions = zip(deleted[::2], deleted[1::2], strict=True)
        entries = [*map(_entry, rows), *(_deletion(key, int(float(by)), at.now) for key, by in deletions)]
        return Delta(at, tuple(entries), bool(whole))

    async def past(self, scope: ContextScope, key: str, version: int) -> Entry | None:
        async with reading():
            row, now = await self._past(args=[_prefix(scope), self._now(), key, version])
        entry = _entry(row) if row else None
        return entry if entry is not None and entry.is_there(_moment(now)) else None

    async def state(self, scope: ContextScope, version: int) -> list[Entry]:
        async with reading():
            rows, now = await self._state(args=[_prefix(scope), self._now(), version])
        at = _moment(now)
        there = (entry for entry in map(_entry, rows) if entry.is_there(at))
        return sorted(there, key=lambda entry: entry.key)

    async def write(
        self,
        scope: ContextScope,
        writes: Sequence[Write],
        author: str,
        *,
        new: Bytes | None = None,
        at: int | None = None,
        keep: int,
    ) -> Written | None:
        spelled = json.dumps([_spelled(write) for write in writes], ensure_ascii=False)
        where = [_prefix(scope), room(scope.tenant), scope.key, self._now()]
        how: list[str | int | bytes] = [
            author,
            -1 if at is None else at,
            keep,
            spelled,
            _name(scope),
            _request(),
        ]
        if new is not None:
            how += [new.digest, new.stored, -1 if new.quota_bytes is None else new.quota_bytes]
        async with writing():
            outcome, *reply = await self._write(args=[*where, *how])
        if outcome == "full" and new is not None and new.quota_bytes is not None:
            raise over_quota(int(reply[0]), len(new.stored), new.quota_bytes)
        if outcome == "moved":
            return None
        if outcome == "refused":
            reason, key, version = reply
            raise conflict(Refusal(reason), key, int(version))
        head, rows, digests = reply
        return Written(_head(head), tuple(map(_entry, rows)), tuple(digests))

    async def take_snapshot(
        self, scope: ContextScope, label: str, author: str, most: int
    ) -> tuple[Snapshot, list[str]]:
        async with writing():
            new_snapshot, dropped = await self._snapshot(
                args=[_prefix(scope), self._now(), label, author, most, _request()]
            )
        if not new_snapshot:
            raise ContextConflictError(
                "There is a snapshot of that label already.", label=label, reason="label"
            )
        return _snapshot_of(new_snapshot), list(dropped)

    async def snapshots(self, scope: ContextScope) -> list[Snapshot]:
        async with reading():
            snapshots = await self._client.hvals(f"{_prefix(scope)}snapshots")
        return sorted(
            (_snapshot_of(str(one)) for one in snapshots),
            key=lambda one: (one.version, one.taken_at, one.label),
        )

    async def trim(self, scope: ContextScope) -> list[str]:
        digests: list[str] = []
        more = True
        async with writing():
            while more:
                more, further = await self._trim(
                    args=[_prefix(scope), room(scope.tenant), scope.key, self._now()]
                )
                digests.extend(further)
        return digests

    async def forget(self, scope: ContextScope) -> None:
        async with writing():
            await self._forget(
                args=[_prefix(scope), room(scope.tenant), scope.key, self._now(), _name(scope)]
            )

    async def private_scopes_of_every_tenant(self, written_before: datetime) -> list[ContextScope]:
        scopes = await self._scopes(f"({milliseconds(written_before)}")
        return [scope for scope in scopes if scope.is_private]

    async def scopes(self, tenant: str) -> list[ContextScope]:
        scopes = await self._scopes("+inf")
        return sorted((scope for scope in scopes if scope.tenant == tenant), key=lambda scope: scope.key)

    async def _scopes(self, written_up_to: str) -> list[ContextScope]:
        async with reading():
            members = await self._client.zrangebyscore(context_scripts.SCOPES_KEY, "-inf", written_up_to)
        return [scope_by_key(*json.loads(str(one))) for one in members]

    def _now(self) -> str:
        return "" if self._clock is None else str(milliseconds(self._clock.now()))


def _prefix(scope: ContextScope) -> str:
    return tenant_prefix("context", scope.tenant, scope.key)


def _request() -> str:
    """An id by which the scripts recognize a request that is sent again."""
    return uuid4().hex


def _name(scope: ContextScope) -> str:
    """The scope's member in the sorted set of all scopes."""
    return json.dumps([scope.tenant, scope.key])


def _spelled(write: Write) -> dict[str, Any]:
    return {
        "key": write.key,
        "digest": write.digest or "",
        "size": write.size,
        "priority": write.priority,
        "immutable": write.immutable,
        "ttl": write.ttl_ms or 0,
        "expires": 0 if write.expires_at is None else milliseconds(write.expires_at),
        "if_version": -1 if write.if_version is None else write.if_version,
    }


def _entry(stored: str) -> Entry:
    row = json.loads(stored)
    return Entry(
        key=row["key"],
        version=row["version"],
        digest=row["digest"] or None,
        size=row["size"],
        priority=row["priority"],
        immutable=row["immutable"],
        author=row["author"],
        written_at=_moment(row["written"]),
        expires_at=_moment(row["expires"]) if row["expires"] else None,
    )


def _deletion(key: str, version: int, at: datetime) -> Entry:
    return Entry(key, version, None, 0, 0, immutable=False, author="", written_at=at)


def _snapshot_of(stored: str) -> Snapshot:
    row = json.loads(stored)
    return Snapshot(row["label"], row["version"], row["author"], _moment(row["at"]))


def _head(reply: Sequence[Any]) -> Head:
    version, floor, now = reply
    return Head(int(version), int(floor), _moment(now))


def _moment(milliseconds_since_1970: float | str) -> datetime:
    return datetime.fromtimestamp(float(milliseconds_since_1970) / 1000, UTC)
