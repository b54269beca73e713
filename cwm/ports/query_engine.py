"""Evaluates untrusted expressions on untrusted data, with bounded time and memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from cwm.domain.result_query import Span


@dataclass(frozen=True, slots=True)
class Matches:
    """Matches found. ``complete`` is False when there may be more than ``limit``."""

    spans: tuple[Span, ...]
    complete: bool


class QueryEngine(Protocol):
    """Every method raises CWM-1003 for an invalid expression, or one that exceeds time or memory."""

    async def jmespath(self, document: bytes, expression: str) -> bytes:
        """Apply ``expression`` to a JSON document; the result as compact JSON in UTF-8."""

    async def matches(self, text: bytes, pattern: str, limit: int) -> Matches:
        """Where the regular expression ``pattern`` matches in UTF-8 text, at most ``limit`` matches.

        ``^`` and ``$`` match at line ends.
        """

    async def found(self, text: bytes, words: str, limit: int) -> Matches:
        """Where ``words`` occur, ignoring case, at most ``limit`` times."""
