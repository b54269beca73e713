"""What is counted and timed, without saying how it is published."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol


class Meter(Protocol):
    def operation(self, name: str) -> AbstractContextManager[None]:
        """Count and time one operation; an exception makes its status 'error' and passes on."""

    def tokens(self, source: str, count: int) -> None:
        """Count prompt tokens by where their KV came from."""

    def event(self, name: str) -> None:
        """Count something that happened."""
