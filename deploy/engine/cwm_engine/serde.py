"""The LMCache serde ``cwm-seal`` for every adapter below L1: seals chunks with :mod:`cwm_engine.chunk_seal`.

Replaces LMCache's own ``aesgcm``, which opens a value under any name and copies each chunk four times.
Importing this module registers it: ``"serde": {"type": "cwm-seal", "keyring_path": ...}``.
"""

from __future__ import annotations

import math
from pathlib import Path

from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey
from lmcache.v1.distributed.serde.async_processor import AsyncSerdeProcessor
from lmcache.v1.distributed.serde.base import Deserializer, SerdeProcessor, Serializer
from lmcache.v1.distributed.serde.factory import register_serde_factory
from lmcache.v1.memory_management import MemoryObj

from cwm_engine import chunk_seal


class _Sealer(Serializer):
    def __init__(self, ring: chunk_seal.Keyring) -> None:
        self.ring = ring

    def serialize(self, src: MemoryObj, dst: MemoryObj, key: ObjectKey) -> int:
        return chunk_seal.seal(self.ring, _name(key), key.cache_salt, _bytes(src), _bytes(dst))

    def estimate_serialized_size(self, layout_desc: MemoryLayoutDesc) -> int:
        layouts = zip(layout_desc.shapes, layout_desc.dtypes, strict=True)
        return sum(math.prod(shape) * dtype.itemsize for shape, dtype in layouts) + chunk_seal.OVERHEAD_BYTES


class _Unsealer(Deserializer):
    def __init__(self, ring: chunk_seal.Keyring) -> None:
        self._ring = ring

    def deserialize(self, src: MemoryObj, dst: MemoryObj, key: ObjectKey) -> None:
        chunk_seal.unseal(self._ring, _name(key), key.cache_salt, _bytes(src), _bytes(dst))


def _name(key: ObjectKey) -> str:
    """The fields that identify a chunk. Neither a model's name nor a salt can contain an ``@``."""
    return f"{key.model_name}@{key.kv_rank:x}@{key.object_group_id:x}@{key.chunk_hash.hex()}@{key.cache_salt}"


def _bytes(chunk: MemoryObj) -> memoryview:
    """A chunk's memory without a copy, cast to bytes because LMCache's format cannot be sliced."""
    return memoryview(chunk.byte_array).cast("B")


def _create(options: dict[str, object]) -> SerdeProcessor:
    ring = chunk_seal.Keyring(Path(str(options["keyring_path"])))
    workers = int(str(options.get("max_workers", 1)))
    return AsyncSerdeProcessor(_Sealer(ring), _Unsealer(ring), max_workers=workers)


register_serde_factory("cwm-seal", _create)
