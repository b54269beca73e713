"""The stored form of contents: one byte for the format, then the plain bytes or a zstd frame."""

from __future__ import annotations

import hashlib
from typing import Final

import zstandard

_PLAIN: Final = b"\x00"
_ZSTD: Final = b"\x01"
_LEVEL: Final = 3
_MOST_BYTES: Final = 1 << 30


def digest_of(plain: bytes) -> str:
    return hashlib.sha256(plain).hexdigest()


def stored_form(plain: bytes, compress_above: int) -> bytes:
    """Compressed if ``plain`` has more than ``compress_above`` bytes and becomes smaller by it, else plain."""
    if len(plain) > compress_above:
        frame = zstandard.ZstdCompressor(level=_LEVEL).compress(plain)
        if len(frame) < len(plain):
            return _ZSTD + frame
    return _PLAIN + plain


def is_compressed(stored: bytes) -> bool:
    return stored[:1] == _ZSTD


def plain_size(stored: bytes) -> int:
    """The size of the plain bytes, as their frame declares it."""
    try:
        size = zstandard.frame_content_size(stored[1:]) if is_compressed(stored) else len(stored)
    except zstandard.ZstdError:
        return 0
    return max(size, 0)


def plain_form(stored: bytes, digest: str) -> bytes | None:
    """The plain bytes, or None if they do not match ``digest``."""
    plain = _unpacked(stored)
    return plain if plain is not None and digest_of(plain) == digest else None


def _unpacked(stored: bytes) -> bytes | None:
    if stored[:1] == _PLAIN:
        return stored[1:]
    if stored[:1] != _ZSTD:
        return None
    frame = stored[1:]
    try:
        if not 0 <= zstandard.frame_content_size(frame) <= _MOST_BYTES:
            return None
        return zstandard.ZstdDecompressor().decompress(frame)
    except zstandard.ZstdError:
        return None
