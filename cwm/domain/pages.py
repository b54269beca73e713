"""Pages of a body of bytes. Joined, they are the body, byte for byte.

Page boundaries of text depend only on the body and the page length, so they are the same for every reader: after a
line end if one is near, else between characters, and not inside a grapheme cluster. Binary pages are cut at
multiples of three bytes, so that their base64 can be joined too.
"""

from __future__ import annotations

import unicodedata
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

MIN_PAGE_BYTES: Final = 256

_SAMPLES: Final = 8
_SAMPLE_BYTES: Final = 1_020
_MOST_BYTES_A_TOKEN: Final = 16
_SLACK: Final = 8
"""A page may end up to 1/8 early to end at a good place."""
_SAFETY: Final = 0.95
_LONGEST_CLUSTER: Final = 64
_JOINER: Final = "\u200d"


@dataclass(frozen=True, slots=True)
class Pages:
    """A body cut into pages of about ``page_bytes``. Binary pages are shown as base64."""

    body: bytes
    page_bytes: int
    binary: bool = False

    @property
    def count(self) -> int:
        """At least one: an empty body has one empty page."""
        return max(1, -(-len(self.body) // self.page_bytes))

    def start(self, page: int) -> int:
        """The offset of a page, counted from 0. A page after the last starts at the end of the body."""
        if page <= 0:
            return 0
        if page >= self.count:
            return len(self.body)
        return self._settled(page * self.page_bytes, self.page_bytes // _SLACK)

    def holding(self, offset: int) -> int:
        """The page that contains the byte at ``offset``."""
        page = min(offset // self.page_bytes, self.count - 1)
        return page + 1 if page + 1 < self.count and self.start(page + 1) <= offset else page

    def shown(self, start: int, end: int) -> str:
        return spelled(self.body[start:end], binary=self.binary)

    def fitting(self, start: int, end: int, tokens: int, count: Callable[[str], int]) -> tuple[int, int]:
        """Where to end, at most at ``end``, so that the text takes at most ``tokens``; and the tokens that it takes.

        At least one character is always shown, whatever it takes, so that reading makes progress.
        """
        while (token_count := count(self.shown(start, end))) > tokens:
            shorter = self._ending(start, start + int((end - start) * tokens / token_count * _SAFETY))
            if shorter >= end:
                break
            end = shorter
        return end, token_count

    def upto(self, start: int, length: int) -> int:
        """A good end for a piece of about ``length`` bytes from ``start``."""
        if start + length >= len(self.body):
            return len(self.body)
        return self._ending(start, start + length)

    def _ending(self, start: int, at: int) -> int:
        """A good end at or before ``at``, but after ``start``."""
        if self.binary:
            return start + max(3, (at - start) // 3 * 3)
        boundary = self._settled(at, (at - start) // _SLACK) if at > start else start
        if boundary > start:
            return boundary
        end = start + 1
        while end < len(self.body) and _is_inside(self.body[end]):
            end += 1
        return end

    def _settled(self, at: int, slack: int) -> int:
        if self.binary:
            return at // 3 * 3
        line = self.body.rfind(b"\n", at - slack, at) + 1
        if line:
            return line
        while at and _is_inside(self.body[at]):
            at -= 1
        return self._between_clusters(at, min(slack, _LONGEST_CLUSTER))

    def _between_clusters(self, at: int, slack: int) -> int:
        """``at``, or, up to ``slack`` bytes earlier, the start of the cluster that it would split."""
        before = self.body[at - slack : at].decode(errors="ignore")
        after = self.body[at : at + 4].decode(errors="ignore")[:1]
        boundary = at
        while before and after and _belong_together(before[-1], after):
            after, before = before[-1], before[:-1]
            boundary -= len(after.encode())
        return boundary if before else at


def spelled(body: bytes, *, binary: bool) -> str:
    """Bytes as text: base64 for binary, else decoded UTF-8."""
    return b64encode(body).decode() if binary else body.decode()


def page_bytes_for(body: bytes, tokens: int, count: Callable[[str], int], *, binary: bool = False) -> int:
    """The page length at which the densest of a few samples of ``body`` takes ``tokens`` per page."""
    last = max(len(body) - _SAMPLE_BYTES, 0)
    heaviest = 1 / _MOST_BYTES_A_TOKEN
    for start in sorted({last * sample // (_SAMPLES - 1) for sample in range(_SAMPLES)}):
        piece = body[start : start + _SAMPLE_BYTES]
        text = b64encode(piece).decode() if binary else piece.decode(errors="ignore")
        heaviest = max(heaviest, count(text) / max(len(piece), 1))
    return max(MIN_PAGE_BYTES, int(tokens / heaviest))


def _is_inside(byte: int) -> bool:
    """Whether a byte of UTF-8 continues a character."""
    return byte & 0xC0 == 0x80


def _belong_together(one: str, other: str) -> bool:
    """Whether two characters may be parts of one cluster. When unsure, it says yes."""
    return (
        (one == "\r" and other == "\n")
        or _JOINER in {one, other}
        or unicodedata.category(other) in {"Mn", "Mc", "Me"}
        or "\U0001f3fb" <= other <= "\U0001f3ff"
        or "\U000e0020" <= other <= "\U000e007f"
        or (_is_flag_half(one) and _is_flag_half(other))
        or (_is_jamo(one) and _is_jamo(other))
    )


def _is_flag_half(character: str) -> bool:
    return "\U0001f1e6" <= character <= "\U0001f1ff"


def _is_jamo(character: str) -> bool:
    return "\u1100" <= character <= "\u11ff"
