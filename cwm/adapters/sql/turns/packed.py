"""Stored token ids and messages: packed, compressed, and checked when read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import zstandard

from cwm.domain.errors import StorageCorruptionError
from cwm.domain.prefix import TOKEN_BYTES, TokenIds, digest_of_packed, pack, unpack
from cwm.domain.showable import recorded
from cwm.domain.weight import MOST_AT_ONCE, Room, compact_ascii, too_large, weight_of

_LEVEL: Final = 3
_DAMAGED: Final = "A stored message is damaged."


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


class Packed(NamedTuple):
    """A stored JSON object, and what it takes in memory, see ``cwm.domain.weight``."""

    stored: bytes
    weight: int


def pack_json(content: Mapping[str, Any] | Sequence[Any]) -> Packed:
    """The stored form of a message or of items, empty for what is not kept."""
    if not content:
        return Packed(b"", 0)
    text = compact_ascii(content)
    return Packed(zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True).compress(text), weight_of(text))


def unpack_json(stored: bytes, weight: int | None, room: Room, **whose: str) -> Any:
    """What :func:`pack_json` packed, nested no deeper than can be shown; an empty object for what is not kept.

    ``weight`` is None where it was stored by a CWM that did not weigh. CWM-4006, before anything is parsed, if it does not fit into the
    ``room``; CWM-4004 if it is damaged.
    """
    if not stored:
        return {}
    text = text_of(stored, weight, room, **whose)
    try:
        return recorded(text)
    except ValueError as error:
        raise StorageCorruptionError(_DAMAGED, **whose) from error


def text_of(stored: bytes, weight: int | None, room: Room, **whose: str) -> bytes:
    """The JSON text of what is not empty. CWM-4004, 4006."""
    try:
        size = zstandard.frame_content_size(stored)
        if weight is not None:
            room.take(weight)
        elif not room.has(size):
            raise too_large(room.most)
        if size < 0 or (weight is not None and size > weight):
            raise StorageCorruptionError(_DAMAGED, **whose)
        text: bytes = zstandard.ZstdDecompressor().decompress(stored)
    except zstandard.ZstdError as error:
        raise StorageCorruptionError(_DAMAGED, **whose) from error
    if weight is None:
        room.take(weight_of(text))
    return text


def weight_in(stored: bytes) -> int:
    """The weight of what :func:`pack_json` packed; of what is larger than anything that is read, the length of its text. CWM-4004."""
    try:
        size = zstandard.frame_content_size(stored) if stored else 0
        return size if size > MOST_AT_ONCE else weight_of(text_of(stored, size, Room())) if stored else 0
    except zstandard.ZstdError as error:
        raise StorageCorruptionError(_DAMAGED) from error


def _decompress(decompressor: zstandard.ZstdDecompressor, stored: bytes, size: int) -> bytes:
    """The content; nothing for a damaged frame, or one that declares another size (checked before allocating)."""
    try:
        if zstandard.frame_content_size(stored) != size:
            return b""
        return decompressor.decompress(stored)
    except zstandard.ZstdError:
        return b""
