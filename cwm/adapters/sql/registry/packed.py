"""Stored token ids: packed, compressed, and checked against their digest when read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import zstandard

from cwm.domain.errors import StorageCorruptionError
from cwm.domain.prefix import TOKEN_BYTES, TokenIds, digest_of_packed, pack, unpack

_LEVEL: Final = 3


def compress(token_ids: Sequence[int]) -> tuple[bytes, str]:
    """The stored form and the digest of the ids."""
    packed = pack(token_ids)
    return zstandard.ZstdCompressor(level=_LEVEL).compress(packed), digest_of_packed(packed)


def restore(stored: bytes, digest: str, token_count: int, **whose: str) -> TokenIds:
    """The ids. Raises CWM-4004 unless they match ``digest`` and ``token_count``."""
    packed = _decompress(stored, token_count * TOKEN_BYTES)
    if packed is None or digest_of_packed(packed) != digest:
        raise StorageCorruptionError("The stored token ids do not match their digest.", **whose)
    return unpack(packed)


def _decompress(stored: bytes, size: int) -> bytes | None:
    """The content; None for a damaged frame, or one that declares another size (checked before allocating)."""
    try:
        if zstandard.frame_content_size(stored) != size:
            return None
        return zstandard.ZstdDecompressor().decompress(stored)
    except zstandard.ZstdError:
        return None
