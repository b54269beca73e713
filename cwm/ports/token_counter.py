"""Counts the tokens that a text takes in a model's context."""

from __future__ import annotations

from typing import Protocol


class TokenCounter(Protocol):
    def count(self, text: str) -> int:
        """Tokens of ``text``. An underestimate is at most 5 % off."""
