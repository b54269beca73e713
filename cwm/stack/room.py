"""Keeps space free in the tiers below L1: removes chunks that are not frozen, and never a frozen chunk's last copy.

Every request leaves its chunks in the shared tier and on disk. Their own eviction is off because it ignores
pins. So when Valkey or the folder is nearly full, this module removes the least recently used chunks through
LMCache, which reports that to the coordinator. A frozen chunk is removed from Valkey only while it is on disk,
and never from the disk.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import time
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
from redis.asyncio import Redis
from redis.exceptions import RedisError

from cwm.stack.environment import GIB, Report
from cwm.stack.redis_url import RedisAddress

_LOOK_SECONDS = 2.0
_DISK_EVERY = 15  # checks
_FULL = 0.8
_ROOMY = 0.7
_RESERVE_SMALLEST, _RESERVE_LARGEST = GIB, 10 * GIB
_PINS_PAGE = 10_000  # the coordinator's largest page
_PINS_READINGS = 5
_REPORT_AFTER = 3  # failed checks
_DELETE_BATCH = 1000
_ASK_SECONDS = 30.0
_TEXT = r"[^\n\ud800-\udfff]"  # characters that JSON to LMCache can carry
_NAME = re.compile(
    rf"(?P<model>{_TEXT}+)@(?:0x)?(?P<rank>[0-9a-f]{{8}})@(?P<group>[0-9a-f]+)@(?P<hash>[0-9a-f]{{64}})(?:@(?P<salt>{_TEXT}*?))?(?:\.data)?"
)


@dataclass(frozen=True, slots=True)
class ChunkKey:
    """LMCache's name of one chunk: its key in Valkey and its file name."""

    model: str
    rank: int
    group: int
    hash: str
    salt: str

    @property
    def pin(self) -> ChunkKey:
        """The key that a pin uses: a pin covers the chunk in every object group."""
        return replace(self, group=0)

    @classmethod
    def parse(cls, name: str) -> ChunkKey | None:
        """Parse ``model@rank@group@hash[@salt]``; a file name also has ``0x``, ``-SEP-`` and ``.data``."""
        match = _NAME.fullmatch(name)
        if match is None:
            return None
        model = match["model"].replace("-SEP-", "/")
        return cls(model, int(match["rank"], 16), int(match["group"], 16), match["hash"], match["salt"] or "")

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
    """A chunk in a tier: its size in bytes and the seconds since its last use."""

    key: ChunkKey
    size: int
    idle: float


def victims(
    stored: Iterable[Stored], frozen: set[ChunkKey], spare: set[ChunkKey], need: int
) -> list[ChunkKey]:
    """Chunks to remove to free ``need`` bytes, the longest unused first.

    Frozen chunks (``frozen``) come last, and only those that have another copy (``spare``).
    """
    candidates = [chunk for chunk in stored if chunk.key.pin not in frozen or chunk.key in spare]
    keys: list[ChunkKey] = []
    for chunk in sorted(candidates, key=lambda chunk: (chunk.key.pin in frozen, -chunk.idle)):
        if need <= 0:
            break
        keys.append(chunk.key)
        need -= chunk.size
    return keys


class Disk(NamedTuple):
    """A disk's bytes, as from ``shutil.disk_usage``."""

    total: int
    used: int
    free: int


def disk_limit(limit: int, used: int, disk: Disk) -> int:
    """The most bytes that the disk tier may take: ``limit``, or no fixed limit if that is 0. It takes ``used`` now.

    Always leaves a reserve free on its disk, where the registry may be too: a twentieth of the disk, at least 1 GiB
    and at most 10.
    """
    reserve = min(max(disk.total // 20, _RESERVE_SMALLEST), _RESERVE_LARGEST)
    possible = max(0, used + disk.free - reserve)
    return min(limit, possible) if limit else possible


class PinsMovedError(Exception):
    """Pins changed faster than they could be read: the frozen chunks are unknown, so nothing may be removed."""


class NoPinsError(Exception):
    """The coordinator's answer is not a page of pins."""


_OUTAGES = (RedisError, httpx2.HTTPError, OSError, PinsMovedError, NoPinsError)


@dataclass(slots=True)
class TierState:
    """What the last checks of a tier came to, in bytes. Nothing is known before the first one; a ``limit`` of 0 is none."""

    title: str
    used: int = 0
    limit: int = 0
    failures: int = 0
    """Failed checks in succession."""
    is_short: bool = False
    """Whether frozen windows leave too little room."""


class Room:
    """Watches the disk tier of one engine, and the Valkey. ``redis`` is None if the stack uses an external Redis.

    ``others`` are the folders of other engines' disk tiers: a chunk there is no last copy in the Valkey. ``alive`` is a file to touch after every check that succeeded.
    """

    def __init__(
        self,
        redis: RedisAddress | None,
        folder: Path,
        disk_gb: float,
        urls: tuple[str, str],
        report: Report,
        *,
        others: Sequence[Path] = (),
        alive: Path | None = None,
    ) -> None:
        self._redis, self._folder, self._disk_bytes = redis, folder, int(disk_gb * GIB)
        self._folders = (folder, *others)
        self._coordinator_url, self._lmcache_url = urls
        self._report = report
        self._alive = alive
        self._disk, self._valkey = TierState("the disk tier"), TierState("Valkey")
        self.tiers = {"disk": self._disk, **({"valkey": self._valkey} if redis else {})}

    async def keep(self) -> None:
        """Check both tiers every few seconds, for ever. An outage delays a tier's check; one of Valkey not the disk's."""
        async with AsyncExitStack() as resources:
            http = await resources.enter_async_context(
                httpx2.AsyncClient(trust_env=False, timeout=_ASK_SECONDS)
            )
            redis = None
            if self._redis is not None:
                redis = await resources.enter_async_context(connected(self._redis))
            for look in range(1 << 62):
                if redis is not None:
                    await self._try(self._valkey, self._keep_memory(redis, http))
                if look % _DISK_EVERY == 0:
                    await self._try(self._disk, self.keep_disk(http))
                if self._alive is not None and not any(tier.failures for tier in self.tiers.values()):
                    self._alive.touch()
                await asyncio.sleep(_LOOK_SECONDS)

    async def _try(self, tier: TierState, check: Coroutine[Any, Any, None]) -> None:
        """Report once when checks keep failing: a short outage ends by itself, a wrong address or password stays."""
        try:
            await check
        except _OUTAGES as error:
            tier.failures += 1
            if tier.failures == _REPORT_AFTER:
                self._report(
                    f"{tier.title} cannot be kept below its limit for now: {type(error).__name__}: {error}"
                )
        else:
            tier.failures = 0

    async def _keep_memory(self, redis: Redis, http: httpx2.AsyncClient) -> None:
        info = await redis.info("memory")
        used, limit = int(info["used_memory"]), int(info["maxmemory"])
        self._valkey.used, self._valkey.limit = used, limit
        if not limit or used <= _FULL * limit:
            self._valkey.is_short = False
            return
        need = used - int(_ROOMY * limit)
        chunks = [await asyncio.to_thread(chunks_on_disk, folder) for folder in self._folders]
        on_disk = {chunk.key for each in chunks for chunk in each}
        # Read pins last: a freeze pins before it proves, so the chunks that it relies on are spared.
        stored = await chunks_in_valkey(redis)
        keys = victims(stored, await self._frozen(http), on_disk, need)
        await self._remove(http, keys, "valkey")
        self._report_if_short(self._valkey, stored, keys, need, "raise its maxmemory (CWM_REDIS_CACHE_GB)")

    async def keep_disk(self, http: httpx2.AsyncClient) -> None:
        stored = await asyncio.to_thread(chunks_on_disk, self._folder)
        used = sum(chunk.size for chunk in stored)
        limit = disk_limit(self._disk_bytes, used, Disk(*shutil.disk_usage(self._folder)))
        self._disk.used, self._disk.limit = used, limit
        if used <= _FULL * limit:
            self._disk.is_short = False
            return
        need = used - int(_ROOMY * limit)
        keys = victims(stored, await self._frozen(http), set(), need)
        await self._remove(http, keys, "fs_native")
        remedy = "raise CWM_DISK_CACHE_GB" if limit == self._disk_bytes else "make room on its disk"
        self._report_if_short(self._disk, stored, keys, need, remedy)

    async def _frozen(self, http: httpx2.AsyncClient) -> set[ChunkKey]:
        """Every chunk pinned in the coordinator. Raises PinsMovedError, NoPinsError."""
        for _ in range(_PINS_READINGS):
            if (pins := await self._read_pins(http)) is not None:
                return pins
        raise PinsMovedError("pins leave faster than they can be read")

    async def _read_pins(self, http: httpx2.AsyncClient) -> set[ChunkKey] | None:
        """All pages of pins; None if a pin was removed meanwhile: later pins move up, so some may be missing.

        The coordinator lists pins in the order of their creation. Each page begins with the last pin of the page
        before it: while that pin keeps its position, no earlier pin has been removed.
        """
        pins: list[ChunkKey] = []
        while True:
            last = pins[-1:]
            query = {"offset": max(0, len(pins) - 1), "limit": _PINS_PAGE}
            answer = await http.get(f"{self._coordinator_url}/cache/pins", params=query)
            page = _page(answer.raise_for_status())
            if last and page[:1] != last:
                return None
            pins += page[len(last) :]
            if len(page) < _PINS_PAGE:
                return set(pins)

    async def _remove(self, http: httpx2.AsyncClient, victim_keys: Sequence[ChunkKey], adapter: str) -> None:
        for start in range(0, len(victim_keys), _DELETE_BATCH):
            keys = [key.as_json() for key in victim_keys[start : start + _DELETE_BATCH]]
            body = {"keys": keys, "tier": "l2", "adapter": adapter}
            (await http.request("DELETE", f"{self._lmcache_url}/cache/objects", json=body)).raise_for_status()

    def _report_if_short(
        self,
        tier: TierState,
        stored: Sequence[Stored],
        victim_keys: Sequence[ChunkKey],
        need: int,
        remedy: str,
    ) -> None:
        """Report once that frozen windows fill a tier: an operator has to act."""
        removed_keys = set(victim_keys)
        freed = sum(chunk.size for chunk in stored if chunk.key in removed_keys)
        if freed < need and not tier.is_short:
            tier.is_short = True
            self._report(f"{tier.title} is full of frozen windows; delete some or {remedy}")


def connected(address: RedisAddress) -> Redis:
    return Redis.from_url(
        address.url(),
        decode_responses=True,
        encoding_errors="surrogateescape",  # as Python decodes file names; no chunk has such a key
        socket_connect_timeout=_ASK_SECONDS,
        socket_timeout=_ASK_SECONDS,
    )


def _page(answer: httpx2.Response) -> list[ChunkKey]:
    """The page of pins. Raises NoPinsError for anything else, which must not pass for an empty page."""
    try:
        pins = answer.json()["pins"]
        if not isinstance(pins, list):
            raise TypeError
        return [_pinned(entry["key"]) for entry in pins]
    except (ValueError, TypeError, KeyError) as error:
        raise NoPinsError("the coordinator's list of pins cannot be read") from error


def _pinned(key: dict[str, Any]) -> ChunkKey:
    return ChunkKey(key["model_name"], int(key["kv_rank"]), 0, key["chunk_hash_hex"], key["cache_salt"])


async def chunks_in_valkey(redis: Redis) -> list[Stored]:
    """All chunks in Valkey. Neither OBJECT IDLETIME nor STRLEN counts as a use."""
    names = [name async for name in redis.scan_iter(count=1000)]
    pipeline = redis.pipeline(transaction=False)
    for name in names:
        pipeline.object("IDLETIME", name)
        pipeline.strlen(name)
    answers = await pipeline.execute(raise_on_error=False)
    return [
        Stored(key, size, idle)
        for name, idle, size in zip(names, answers[::2], answers[1::2], strict=True)
        if isinstance(idle, int) and isinstance(size, int) and (key := ChunkKey.parse(name)) is not None
    ]


def chunks_on_disk(folder: Path) -> list[Stored]:
    """All chunks in the disk tier; a file's last write or read is its last use."""
    now, chunks = time.time(), list[Stored]()
    with os.scandir(folder) as entries:
        for entry in entries:
            key = ChunkKey.parse(entry.name) if entry.name.endswith(".data") else None
            if key is not None:
                with suppress(FileNotFoundError):
                    state = entry.stat()
                    chunks.append(Stored(key, state.st_size, now - max(state.st_mtime, state.st_atime)))
    return chunks
