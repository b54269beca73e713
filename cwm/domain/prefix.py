"""A prefix: token ids from position 0, the only thing whose KV can be reused."""

from __future__ import annotations

import hashlib
import struct
import sys
from array import array
from collections.abc import Collection, Sequence
from typing import Any, Final, TypeAlias

TokenIds: TypeAlias = tuple[int, ...]

TOKEN_BYTES: Final = 4


def pack(token_ids: Sequence[int]) -> bytes:
    """Little-endian unsigned 32-bit words, four bytes a token, on any machine."""
    words = array("I", token_ids)
    if sys.byteorder == "big":
        words.byteswap()
    return words.tobytes()


def are_ids(values: Sequence[Any]) -> bool:
    """Whether :func:`pack` takes them."""
    try:
        array("I", values)
    except (TypeError, OverflowError):
        return False
    return True


def unpack(packed: bytes) -> TokenIds:
    """Inverse of :func:`pack`."""
    return struct.unpack(f"<{len(packed) // TOKEN_BYTES}I", packed)


def digest(token_ids: Sequence[int]) -> str:
    """SHA-256 (hex) of the packed ids: names the content and detects damage."""
    return digest_of_packed(pack(token_ids))


def digest_of_packed(packed: bytes) -> str:
    """:func:`digest` of already packed ids."""
    return hashlib.sha256(packed).hexdigest()


def digests_at(packed: bytes, lengths: Collection[int]) -> dict[int, str]:
    """The digests of the first n of packed ids, for each n of ``lengths`` that they reach. One pass serves all."""
    words, running, start, digests = memoryview(packed), hashlib.sha256(), 0, {}
    for length in sorted(length for length in set(lengths) if length * TOKEN_BYTES <= len(packed)):
        running.update(words[start * TOKEN_BYTES : length * TOKEN_BYTES])
        digests[length], start = running.hexdigest(), length
    return digests


def common_length(a: tuple[object, ...], b: tuple[object, ...]) -> int:
    """How many leading items two sequences share, tokens for example."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def full_chunks(token_count: int, chunk_size: int) -> int:
    """How many chunks these tokens fill completely."""
    return token_count // chunk_size


def stored_chunks(token_count: int, chunk_size: int) -> int:
    """How many chunks of a context are filled with KV. The last token was only sampled: it gets KV in the next turn."""
    return full_chunks(max(token_count - 1, 0), chunk_size)


def restorable_tokens(token_count: int, chunk_size: int) -> int:
    """How many tokens of a context get their KV back. The tail, of one token to a whole chunk, is always recomputed."""
    return stored_chunks(token_count, chunk_size) * chunk_size
