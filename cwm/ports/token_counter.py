"""How many tokens a text takes in a model's context."""

from __future__ import annotations

from typing import Protocol


class TokenCounter(Protocol):
    def count(self, text: str) -> int:
        """Tokens of ``text``; never under the truth by more than 5 %."""
