"""Keeps room in the tiers below L1: removes the chunks nobody froze, and never a frozen one's last copy.

Every request leaves its chunks in the shared tier and on disk. Neither evicts by itself: their own eviction
knows nothing of pins. So when Valkey or the folder is nearly full, the chunks used longest ago are removed
through LMCache, which tells the coordinator. A frozen chunk leaves Valkey only while it is on disk, and
never leaves the disk.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import time
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
from redis.asyncio import Redis
from redis.exceptions import RedisError

from cwm.stack.environment import GIB, Report
from cwm.stack.redis_url import RedisAddress

_LOOK_SECONDS = 2.0
_DISK_EVERY = 15  # looks
_FULL = 0.8
_ROOMY = 0.7
_RESERVE_SMALLEST, _RESERVE_LARGEST = GIB, 10 * GIB
_PINS_PAGE = 10_000  # the most that the coordinator gives at once
_PINS_READINGS = 5
_SAID_AFTER = 3  # looks that failed
_DELETE_BATCH = 1000
_ASK_SECONDS = 30.0
_TEXT = r"[^\n\ud800-\udfff]"  # what JSON to LMCache can hold
_NAME = re.compile(
    rf"(?P<model>{_TEXT}+)@(?:0x)?(?P<rank>[0-9a-f]{{8}})@(?P<group>[0-9a-f]+)@(?P<hash>[0-9a-f]{{64}})(?:@(?P<salt>{_TEXT}*?))?(?:\.data)?"
)


@dataclass(frozen=True, slots=True)
class ChunkKey:
    """What LMCache calls one chunk, in Valkey's key and in the file's name."""

    model: str
    rank: int
    group: int
    hash: str
    salt: str

    @property
    def pin(self) -> ChunkKey:
        """The key that a pin names: it covers the chunk in every object group."""
        return replace(self, group=0)

    @classmethod
    def parse(cls, name: str) -> ChunkKey | None:
        """From ``model@rank@group@hash[@salt]``, with ``0x``, ``-SEP-`` and ``.data`` in a file's name."""
        found = _NAME.fullmatch(name)
        if found is None:
            return None
        model = found["model"].replace("-SEP-", "/")
        return cls(model, int(found["rank"], 16), int(found["group"], 16), found["hash"], found["salt"] or "")

    def as_json(self) -> dict[str, Any]:
        return {
            "chunk_hash_hex": self.hash,
            "model_name": self.model,
            "kv_rank": self.rank,
            "object_group_id": self.group,
            "cache_salt": self.salt,
        }


@dataclass(frozen=True, slots=True)
class Stored:
    """A chunk in a tier: its size in bytes and how many seconds ago it was used."""

    key: ChunkKey
    size: int
    idle: float


def victims(stored: Iterable[Stored], kept: set[ChunkKey], spare: set[ChunkKey], need: int) -> list[ChunkKey]:
    """Chunks to remove to free ``need`` bytes, the longest unused first.

    Frozen chunks (``kept``) come last, and only those that have another copy (``spare``).
    """
    allowed = [chunk for chunk in stored if chunk.key.pin not in kept or chunk.key in spare]
    chosen: list[ChunkKey] = []
    for chunk in sorted(allowed, key=lambda chunk: (chunk.key.pin in kept, -chunk.idle)):
        if need <= 0:
            break
        chosen.append(chunk.key)
        need -= chunk.size
    return chosen


class Disk(NamedTuple):
    """A disk's bytes, as ``shutil.disk_usage`` tells them."""

    total: int
    used: int
    free: int


def disk_limit(wanted: int, used: int, disk: Disk) -> int:
    """Bytes that the disk tier, which takes ``used`` now, may take: as many as ``wanted``, or any where that is 0.

    Never so many that its disk, where the registry may be too, has less than a reserve free: a twentieth of it,
    at least 1 GiB and at most 10.
    """
    reserve = min(max(disk.total // 20, _RESERVE_SMALLEST), _RESERVE_LARGEST)
    possible = max(0, used + disk.free - reserve)
    return min(wanted, possible) if wanted else possible


class PinsMovedError(Exception):
    """Pins came and went faster than they could be read: what is frozen is not known, so nothing may be removed."""

    def __str__(self) -> str:
        return "pins leave faster than they can be read"


class NoPinsError(Exception):
    """The coordinator answered with something else than a page of pins."""

    def __str__(self) -> str:
        return "the coordinator's list of pins cannot be read"


_OUTAGES = (RedisError, httpx2.HTTPError, OSError, PinsMovedError, NoPinsError)


class Room:
    """Watches the disk tier of one stack, and its Valkey; without ``redis``, which is somebody else's, the disk alone."""

    def __init__(
        self, redis: RedisAddress | None, folder: Path, disk_gb: float, urls: tuple[str, str], report: Report
    ) -> None:
        self._redis, self._folder, self._disk_bytes = redis, folder, int(disk_gb * GIB)
        self._coordinator_url, self._lmcache_url = urls
        self._report = report
        self._said_full: set[str] = set()
        self._failed: dict[str, int] = {}

    async def keep(self) -> None:
        """Look every few seconds, for ever. An outage of a part only delays it, and of Valkey not the disk tier."""
        async with AsyncExitStack() as opened:
            http = await opened.enter_async_context(httpx2.AsyncClient(trust_env=False, timeout=_ASK_SECONDS))
            redis = None
            if self._redis is not None:
                redis = await opened.enter_async_context(connected(self._redis))
            for look in range(1 << 62):
                if redis is not None:
                    await self._try("Valkey", self._keep_memory(redis, http))
                if look % _DISK_EVERY == 0:
                    await self._try("the disk tier", self.keep_disk(http))
                await asyncio.sleep(_LOOK_SECONDS)

    async def _try(self, tier: str, look: Coroutine[Any, Any, None]) -> None:
        """Say once when looks keep failing: short outages mend themselves, a wrong address or password does not."""
        try:
            await look
        except _OUTAGES as error:
            self._failed[tier] = self._failed.get(tier, 0) + 1
            if self._failed[tier] == _SAID_AFTER:
                self._report(f"no room can be kept in {tier} for now: {type(error).__name__}: {error}")
        else:
            self._failed.pop(tier, None)

    async def _keep_memory(self, redis: Redis, http: httpx2.AsyncClient) -> None:
        info = await redis.info("memory")
        used, limit = int(info["used_memory"]), int(info["maxmemory"])
        if not limit or used <= _FULL * limit:
            self._said_full.discard("Valkey")
            return
        need = used - int(_ROOMY * limit)
        on_disk = {chunk.key for chunk in await asyncio.to_thread(chunks_on_disk, self._folder)}
        # Pins last: a freeze pins before it proves, so what it relies on is spared.
        stored = await chunks_in_valkey(redis)
        chosen = victims(stored, await self._frozen(http), on_disk, need)
        await self._remove(http, chosen, "valkey")
        self._tell_if_short("Valkey", stored, chosen, need, "raise its maxmemory (CWM_REDIS_CACHE_GB)")

    async def keep_disk(self, http: httpx2.AsyncClient) -> None:
        stored = await asyncio.to_thread(chunks_on_disk, self._folder)
        used = sum(chunk.size for chunk in stored)
        limit = disk_limit(self._disk_bytes, used, Disk(*shutil.disk_usage(self._folder)))
        if used <= _FULL * limit:
            self._said_full.discard("the disk tier")
            return
        need = used - int(_ROOMY * limit)
        chosen = victims(stored, await self._frozen(http), set(), need)
        await self._remove(http, chosen, "fs_native")
        mend = "raise CWM_DISK_CACHE_GB" if limit == self._disk_bytes else "make room on its disk"
        self._tell_if_short("the disk tier", stored, chosen, need, mend)

    async def _frozen(self, http: httpx2.AsyncClient) -> set[ChunkKey]:
        """Every pinned chunk the coordinator knows of. Raises PinsMovedError, NoPinsError."""
        for _ in range(_PINS_READINGS):
            if (pins := await self._read_pins(http)) is not None:
                return pins
        raise PinsMovedError

    async def _read_pins(self, http: httpx2.AsyncClient) -> set[ChunkKey] | None:
        """All pages of pins; None if a pin left meanwhile, since those behind it moved up and some may be missed.

        Pins are listed in the order in which they came. So none before a page has left as long as the last one of
        the page before it, which each page begins with, stands where it stood.
        """
        found: list[ChunkKey] = []
        while True:
            last = found[-1:]
            where = {"offset": max(0, len(found) - 1), "limit": _PINS_PAGE}
            answer = await http.get(f"{self._coordinator_url}/cache/pins", params=where)
            page = _page(answer.raise_for_status())
            if last and page[:1] != last:
                return None
            found += page[len(last) :]
            if len(page) < _PINS_PAGE:
                return set(found)

    async def _remove(self, http: httpx2.AsyncClient, chosen: Sequence[ChunkKey], adapter: str) -> None:
        for start in range(0, len(chosen), _DELETE_BATCH):
            keys = [key.as_json() for key in chosen[start : start + _DELETE_BATCH]]
            body = {"keys": keys, "tier": "l2", "adapter": adapter}
            (await http.request("DELETE", f"{self._lmcache_url}/cache/objects", json=body)).raise_for_status()

    def _tell_if_short(
        self, tier: str, stored: Sequence[Stored], chosen: Sequence[ChunkKey], need: int, mend: str
    ) -> None:
        """Say once that frozen windows fill a tier: only a person can change that."""
        gone = set(chosen)
        freed = sum(chunk.size for chunk in stored if chunk.key in gone)
        if freed < need and tier not in self._said_full:
            self._said_full.add(tier)
            self._report(f"{tier} is full of frozen windows; delete some or {mend}")


def connected(address: RedisAddress) -> Redis:
    return Redis(
        **address.connection(),
        decode_responses=True,
        encoding_errors="surrogateescape",  # as with names of files; no chunk is named so
        socket_connect_timeout=_ASK_SECONDS,
        socket_timeout=_ASK_SECONDS,
    )


def _page(answer: httpx2.Response) -> list[ChunkKey]:
    try:
        pins = answer.json()["pins"]
        if isinstance(pins, list):  # what cannot be read must not pass for no pins
            return [_pinned(entry["key"]) for entry in pins]
    except (ValueError, TypeError, KeyError) as unreadable:
        raise NoPinsError from unreadable
    raise NoPinsError


def _pinned(key: dict[str, Any]) -> ChunkKey:
    return ChunkKey(key["model_name"], int(key["kv_rank"]), 0, key["chunk_hash_hex"], key["cache_salt"])


async def chunks_in_valkey(redis: Redis) -> list[Stored]:
    """All chunks in Valkey. Neither question counts as a use."""
    names = [name async for name in redis.scan_iter(count=1000)]
    asked = redis.pipeline(transaction=False)
    for name in names:
        asked.object("IDLETIME", name)
        asked.strlen(name)
    answers = await asked.execute(raise_on_error=False)
    return [
        Stored(key, size, idle)
        for name, idle, size in zip(names, answers[::2], answers[1::2], strict=True)
        if isinstance(idle, int) and isinstance(size, int) and (key := ChunkKey.parse(name)) is not None
    ]


def chunks_on_disk(folder: Path) -> list[Stored]:
    """All chunks in the disk tier; a file counts as used when it was last written or read."""
    return list(_scan(folder))


def _scan(folder: Path) -> Iterator[Stored]:
    now = time.time()
    with os.scandir(folder) as entries:
        for entry in entries:
            key = ChunkKey.parse(entry.name) if entry.name.endswith(".data") else None
            if key is None:
                continue
            try:
                state = entry.stat()
            except FileNotFoundError:
                continue
            yield Stored(key, state.st_size, now - max(state.st_mtime, state.st_atime))
