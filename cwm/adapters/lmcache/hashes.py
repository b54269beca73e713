"""Computes LMCache's chunk hashes: a BLAKE3 chain over big-endian token ids.

Valid for ``hash_algorithm: blake3`` and models with one KV group.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from blake3 import blake3

ALGORITHM: Final = "blake3"
_ROOT: Final = blake3((0).to_bytes(8, "big", signed=True) + struct.pack(">I", 0)).digest()


def chunk_hashes(token_ids: Sequence[int], chunk_size: int) -> list[str]:
    """Hex hashes of the full chunks of ``token_ids``; each hash includes the one before it."""
    parent, hashes = _ROOT, []
    words = struct.Struct(f">{chunk_size}I")
    for start in range(0, len(token_ids) - len(token_ids) % chunk_size, chunk_size):
        parent = blake3(parent + words.pack(*token_ids[start : start + chunk_size])).digest()
        hashes.append(parent.hex())
    return hashes


def kv_ranks(world_size: int) -> list[int]:
    """The ``kv_rank`` field in each worker's keys, for one node."""
    return [world_size << 24 | rank << 16 | world_size << 8 | rank for rank in range(world_size)]
