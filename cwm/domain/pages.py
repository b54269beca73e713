"""Pages of a body of bytes: put together they are the body, byte for byte.

Where a page of text ends is decided by the body and the page's length alone, so that pages are the same for
everybody: after a line if one ends near there, else between two characters, and not inside of what is
shown as one. Binary pages are cut at multiples of three bytes, so that also their base64 can be joined.
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
"""The share of a page, one in so many, that it may be shorter to end well."""
_SAFETY: Final = 0.95
_LONGEST_CLUSTER: Final = 64
_JOINER: Final = "\u200d"


@dataclass(frozen=True, slots=True)
class Pages:
    """``page_bytes`` is about how long a page is; binary pages are shown as base64."""

    body: bytes
    page_bytes: int
    binary: bool = False

    @property
    def count(self) -> int:
        """At least one: nothing has one empty page."""
        return max(1, -(-len(self.body) // self.page_bytes))

    def start(self, page: int) -> int:
        """The offset of a page, which are counted from 0; one after the last begins where the body ends."""
        if page <= 0:
            return 0
        if page >= self.count:
            return len(self.body)
        return self._settled(page * self.page_bytes, self.page_bytes // _SLACK)

    def holding(self, offset: int) -> int:
        """The page that has the byte at ``offset``."""
        page = min(offset // self.page_bytes, self.count - 1)
        return page + 1 if page + 1 < self.count and self.start(page + 1) <= offset else page

    def shown(self, start: int, end: int) -> str:
        return spelled(self.body[start:end], binary=self.binary)

    def fitting(self, start: int, end: int, tokens: int, count: Callable[[str], int]) -> tuple[int, int]:
        """Where to end, ``end`` at most, for what is shown to take ``tokens`` at most, and what it takes.

        A single character is shown whatever it takes: reading goes on.
        """
        while (taken := count(self.shown(start, end))) > tokens:
            shorter = self._ending(start, start + int((end - start) * tokens / taken * _SAFETY))
            if shorter >= end:
                break
            end = shorter
        return end, taken

    def upto(self, start: int, length: int) -> int:
        """Where a piece of about ``length`` bytes from ``start`` on ends well."""
        if start + length >= len(self.body):
            return len(self.body)
        return self._ending(start, start + length)

    def _ending(self, start: int, at: int) -> int:
        """A good end at or before ``at``, but after ``start``."""
        if self.binary:
            return start + max(3, (at - start) // 3 * 3)
        settled = self._settled(at, (at - start) // _SLACK) if at > start else start
        if settled > start:
            return settled
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
        """``at`` or, up to ``slack`` bytes before, the end of a cluster that it would split."""
        before = self.body[at - slack : at].decode(errors="ignore")
        after = self.body[at : at + 4].decode(errors="ignore")[:1]
        settled = at
        while before and after and _belong_together(before[-1], after):
            after, before = before[-1], before[:-1]
            settled -= len(after.encode())
        return settled if before else at


def spelled(body: bytes, *, binary: bool) -> str:
    """Bytes as text: their base64, or the text that they are."""
    return b64encode(body).decode() if binary else body.decode()


def page_bytes_for(body: bytes, tokens: int, count: Callable[[str], int], *, binary: bool = False) -> int:
    """How long pages of ``body`` are for the heaviest of a few samples of it to take ``tokens`` a page."""
    last = max(len(body) - _SAMPLE_BYTES, 0)
    heaviest = 1 / _MOST_BYTES_A_TOKEN
    for start in sorted({last * sample // (_SAMPLES - 1) for sample in range(_SAMPLES)}):
        piece = body[start : start + _SAMPLE_BYTES]
        shown = b64encode(piece).decode() if binary else piece.decode(errors="ignore")
        heaviest = max(heaviest, count(shown) / max(len(piece), 1))
    return max(MIN_PAGE_BYTES, int(tokens / heaviest))


def _is_inside(byte: int) -> bool:
    """Whether a byte of UTF-8 goes on with a character."""
    return byte & 0xC0 == 0x80


def _belong_together(one: str, other: str) -> bool:
    """Whether two characters may be parts of one cluster; rather too often than too rarely."""
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
