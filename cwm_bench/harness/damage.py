"""Deliberate damage to stored chunks in Redis and on disk, beneath LMCache."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import Protocol

from redis.asyncio import Redis

from cwm import shipped


class LowerTier(Protocol):
    """A tier below L1 as its writers see it: sealed chunks by name."""

    async def names(self) -> list[str]: ...

    async def read(self, name: str) -> bytes: ...

    async def write(self, name: str, value: bytes) -> None: ...

    async def remove(self, names: Sequence[str]) -> None:
        """All of ``names`` must exist."""
        ...


class InRedis:
    def __init__(self, client: Redis) -> None:
        self._client = client

    async def names(self) -> list[str]:
        return sorted([key.decode() async for key in self._client.scan_iter(count=1000)])

    async def read(self, name: str) -> bytes:
        value = await self._client.get(name)
        if not isinstance(value, bytes):
            raise KeyError(name)
        return value

    async def write(self, name: str, value: bytes) -> None:
        await self._client.set(name, value)

    async def remove(self, names: Sequence[str]) -> None:
        await self._client.delete(*names)


class OnDisk:
    """``folder`` is the ``base_path`` of LMCache's ``fs_native`` adapter."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def names(self) -> list[str]:
        return await asyncio.to_thread(lambda: sorted(p.name for p in self._folder.glob("*.data")))

    async def read(self, name: str) -> bytes:
        return await asyncio.to_thread((self._folder / name).read_bytes)

    async def write(self, name: str, value: bytes) -> None:
        await asyncio.to_thread((self._folder / name).write_bytes, value)

    async def remove(self, names: Sequence[str]) -> None:
        for name in names:
            await asyncio.to_thread((self._folder / name).unlink)


@dataclass(frozen=True, slots=True)
class Copies:
    """A window's sealed chunks in one tier, in order."""

    names: list[str]
    values: list[bytes]


async def copies(tier: LowerTier, hashes: Sequence[str]) -> Copies:
    """The tier's copies of these chunks. Raises KeyError when one is missing."""
    here = {chunk_hash(name): name for name in await tier.names()}
    names = [here[chunk] for chunk in hashes]
    return Copies(names, [await tier.read(name) for name in names])


def chunk_hash(name: str) -> str:
    """The chunk's hash (64 hex digits), from its name in Redis or on disk."""
    return next((part for part in name.split("@") if len(part) == 64), "")


class Fault(StrEnum):
    """``swap_…``: two values change places. ``forge``: another chunk's KV, sealed with the right key for this one."""

    FLIP = "flip"
    ZERO = "zero"
    TRUNCATE = "truncate"
    SWAP_CHUNKS = "swap_chunks"
    SWAP_WINDOWS = "swap_windows"
    DELETE_FIRST = "delete_first"
    DELETE_MIDDLE = "delete_middle"
    DELETE_LAST = "delete_last"
    FORGE = "forge"


def flipped(value: bytes, share: float = 0.5) -> bytes:
    """One bit changed, ``share`` (0 to 1) of the way through the value."""
    bit = int(share * 8 * len(value))
    return value[: bit // 8] + bytes((value[bit // 8] ^ 1 << bit % 8,)) + value[bit // 8 + 1 :]


def zeroed(value: bytes) -> bytes:
    return bytes(len(value))


def truncated(value: bytes, share: float = 0.5) -> bytes:
    """The front of the value, ``share`` of it, and never all."""
    return value[: int(share * len(value))]


class Forger:
    """Seals the KV of one chunk under the name of another, which takes the keyring."""

    def __init__(self, keyring: Path) -> None:
        self._chunk_seal = _chunk_seal()
        self._ring = self._chunk_seal.Keyring(keyring)

    def forged(self, value: bytes, taken_from: str, put_under: str) -> bytes:
        return self._sealed(self._opened(value, taken_from), put_under)

    def half_forged(self, first: tuple[bytes, str], second: tuple[bytes, str]) -> bytes:
        """The first half of one chunk's KV and the second half of another's, sealed for the first. Each is a sealed value and its name."""
        plain, other = self._opened(*first), self._opened(*second)
        half = len(plain) // 2
        plain[half:] = other[half:]
        return self._sealed(plain, first[1])

    def zeroed(self, value: bytes, put_under: str) -> bytes:
        """Zeros in place of the KV, sealed for the chunk that has this ``value``."""
        return self._sealed(bytearray(len(value) - self._chunk_seal.OVERHEAD_BYTES), put_under)

    def _opened(self, value: bytes, name: str) -> bytearray:
        plain = bytearray(len(value) - self._chunk_seal.OVERHEAD_BYTES)
        self._chunk_seal.unseal(self._ring, *sealed_name(name), memoryview(value), memoryview(plain))
        return plain

    def _sealed(self, plain: bytearray, put_under: str) -> bytes:
        sealed = bytearray(len(plain) + self._chunk_seal.OVERHEAD_BYTES)
        self._chunk_seal.seal(self._ring, *sealed_name(put_under), memoryview(plain), memoryview(sealed))
        return bytes(sealed)


def sealed_name(stored: str) -> tuple[str, str]:
    """The name that a chunk is sealed under and its salt, from its name in Redis or on disk."""
    model, rank, group, chunk, salt = stored.removesuffix(".data").rsplit("@", 4)
    model = model.replace("-SEP-", "/")
    return f"{model}@{int(rank, 16):x}@{int(group, 16):x}@{chunk}@{salt}", salt


def _chunk_seal() -> ModuleType:
    """The engine's module, which is shipped for the engine's environment and not in this package."""
    spec = importlib.util.spec_from_file_location(
        "chunk_seal", shipped.folder("engine") / "cwm_engine/chunk_seal.py"
    )
    if spec is None or spec.loader is None:
        raise RuntimeError("chunk_seal.py is not shipped with this installation")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
