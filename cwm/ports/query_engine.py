"""Expressions of others, evaluated on data of others: bounded in time and memory, whatever they say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from cwm.domain.result_query import Span


@dataclass(frozen=True, slots=True)
class Matches:
    """``complete`` is False when there may be more than were asked for."""

    spans: tuple[Span, ...]
    complete: bool


class QueryEngine(Protocol):
    """Every method raises CWM-1003 for an expression that is none, or that takes too much."""

    async def jmespath(self, document: bytes, expression: str) -> bytes:
        """What ``expression`` makes of a JSON document, as compact JSON in UTF-8."""

    async def matches(self, text: bytes, pattern: str, limit: int) -> Matches:
        """Where ``pattern`` matches in UTF-8, at most ``limit`` times; ``^`` and ``$`` are those of lines."""

    async def found(self, text: bytes, words: str, limit: int) -> Matches:
        """Where ``words`` stand, in whatever case."""
