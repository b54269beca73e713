"""What JSON takes as Python objects, known before it is parsed: 9 KB on a disk can be 1 GB in memory."""

from __future__ import annotations

from typing import Any, Final

from cwm.domain.errors import StoredTooLargeError
from cwm.domain.json_text import json_pieces

NODE_BYTES: Final = 80
"""Of each value in a JSON text beside its letters: an object of two short texts takes 240 bytes."""
MOST_AT_ONCE: Final = 16 * 2**20
"""The largest weight of one object, and of all that one page shows. CPython parses it in some 25 ms, and no other thread runs meanwhile."""
_OTHERS: Final = bytes(sorted(set(range(256)) - set(b'",[{')))


def weight_of(text: bytes) -> int:
    """The memory that a JSON text takes when it is parsed, about, in bytes."""
    bare = text.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _OTHERS)
    outside = b"".join(bare.split(b'"')[::2])
    return len(text) + NODE_BYTES * (1 + len(outside))


def compact_ascii(value: Any) -> bytes:
    """The value as compact JSON in ASCII, in pieces that stop no other thread for long: a text may contain half of a surrogate pair."""
    return b"".join(piece.encode() for piece in json_pieces(value))


class Room:
    """Weight that may still be unpacked together."""

    __slots__ = ("left", "most")

    def __init__(self, most: int = MOST_AT_ONCE) -> None:
        self.most = self.left = most

    @property
    def taken(self) -> int:
        return self.most - self.left

    def has(self, weight: int) -> bool:
        return weight <= self.left

    def take(self, weight: int) -> None:
        """CWM-4006 if there is not as much."""
        if weight > self.left:
            raise too_large(self.most)
        self.left -= weight


def too_large(most: int) -> StoredTooLargeError:
    return StoredTooLargeError(
        f"What is stored would take more than {most / 2**20:.0f} MB of memory at once: read less of it.",
        max_bytes=most,
    )
