"""Room for request bodies: how many bytes of them this process holds, in all and of one caller."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from cwm.domain.principal import Principal

_MEBIBYTE: Final = 1024 * 1024
_STRANGERS: Final = ""


@dataclass(frozen=True, slots=True)
class Full:
    """The bound that a body would exceed, and whose bodies it is for."""

    most: int
    whose: str
    setting: str


@dataclass(slots=True)
class BodyRoom:
    """``most``: bytes of all bodies; ``most_of_one``: of one caller's, so that no caller can take it all."""

    most: int = 128 * _MEBIBYTE
    most_of_one: int = 32 * _MEBIBYTE
    _held: Counter[str] = field(default_factory=Counter)
    _total: int = 0

    @property
    def total(self) -> int:
        """The bytes that are held now."""
        return self._total

    def full(self, key: str, size: int) -> Full | None:
        """The bound that ``size`` more bytes of this caller would exceed."""
        if self._held[key] + size > self.most_of_one:
            return Full(self.most_of_one, "for each principal and gateway", "CWM_BODY_MEMORY_PRINCIPAL_BYTES")
        if self._total + size > self.most:
            return Full(self.most, "on this gateway", "CWM_BODY_MEMORY_BYTES")
        return None

    def take(self, key: str, size: int) -> None:
        self._held[key] += size
        self._total += size

    def give_back(self, key: str, size: int) -> None:
        self.take(key, -size)
        if not self._held[key]:
            del self._held[key]


@dataclass(slots=True)
class HeldBody:
    """What one request holds of the room."""

    room: BodyRoom
    key: str
    size: int = 0

    def grow(self, size: int) -> None:
        self.room.take(self.key, size)
        self.size += size

    def release(self) -> None:
        self.room.give_back(self.key, self.size)
        self.size = 0


def body_key(principal: Principal | None) -> str:
    """One for each principal; one for all callers without credentials together."""
    return _STRANGERS if principal is None else f"{principal.tenant}\0{principal.subject}"
