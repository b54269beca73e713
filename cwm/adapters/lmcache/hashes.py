"""LMCache's chunk hashes, computed here: a chain of BLAKE3 over big-endian token ids.

Holds for ``hash_algorithm: blake3`` and models with one KV group.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from blake3 import blake3

ALGORITHM: Final = "blake3"
_ROOT: Final = blake3((0).to_bytes(8, "big", signed=True) + struct.pack(">I", 0)).digest()


def chunk_hashes(token_ids: Sequence[int], chunk_size: int) -> list[str]:
    """Hex hashes of the full chunks of ``token_ids``, each chained on the one before."""
    parent, hashes = _ROOT, []
    words = struct.Struct(f">{chunk_size}I")
    for start in range(0, len(token_ids) - len(token_ids) % chunk_size, chunk_size):
        parent = blake3(parent + words.pack(*token_ids[start : start + chunk_size])).digest()
        hashes.append(parent.hex())
    return hashes


def kv_ranks(world_size: int) -> list[int]:
    """The rank field of each worker's keys, for one node."""
    return [world_size << 24 | rank << 16 | world_size << 8 | rank for rank in range(world_size)]
