"""Stored token ids and messages: packed, compressed, and checked when read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import zstandard

from cwm.domain.errors import StorageCorruptionError
from cwm.domain.prefix import TOKEN_BYTES, TokenIds, digest_of_packed, pack, unpack
from cwm.domain.showable import recorded

_LEVEL: Final = 3


class Delta(NamedTuple):
    """Stored ids, their number, and how many of them count: the first ``wanted``, none if that is negative."""

    stored: bytes
    token_count: int
    wanted: int


def compress(token_ids: Sequence[int]) -> tuple[bytes, str]:
    """The stored form and the digest of the ids."""
    packed = pack(token_ids)
    return zstandard.ZstdCompressor(level=_LEVEL).compress(packed), digest_of_packed(packed)


def join(deltas: Iterable[Delta], is_theirs: Callable[[str], bool], **whose: str) -> TokenIds:
    """The ids of the deltas, in this order. Raises CWM-4004 unless the digest of them all ``is_theirs``."""
    needed = (delta for delta in deltas if delta.wanted > 0)
    # Making one takes three times as long as using it.
    decompressor = zstandard.ZstdDecompressor()
    packed = b"".join(
        _decompress(decompressor, delta.stored, delta.token_count * TOKEN_BYTES)[: delta.wanted * TOKEN_BYTES]
        for delta in needed
    )
    if not is_theirs(digest_of_packed(packed)):
        raise StorageCorruptionError("The stored token ids do not match their digest.", **whose)
    return unpack(packed)


def compress_json(content: dict[str, Any]) -> bytes:
    """The stored form of a message, empty for one that is not kept.

    ASCII, because a client's text may contain half of a surrogate pair.
    """
    if not content:
        return b""
    packed = json.dumps(content, separators=(",", ":")).encode()
    return zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True).compress(packed)


def restore_json(stored: Iterable[bytes], **whose: str) -> Iterator[dict[str, Any]]:
    """The messages, nested no deeper than can be shown. Raises CWM-4004 for a damaged one."""
    decompressor = zstandard.ZstdDecompressor()
    for each in stored:
        try:
            content: dict[str, Any] = recorded(decompressor.decompress(each)) if each else {}
        except (zstandard.ZstdError, ValueError) as error:
            raise StorageCorruptionError("A stored message is damaged.", **whose) from error
        yield content


def _decompress(decompressor: zstandard.ZstdDecompressor, stored: bytes, size: int) -> bytes:
    """The content; nothing for a damaged frame, or one that declares another size (checked before allocating)."""
    try:
        if zstandard.frame_content_size(stored) != size:
            return b""
        return decompressor.decompress(stored)
    except zstandard.ZstdError:
        return b""
