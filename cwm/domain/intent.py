"""Intents: what a gateway began and has not ended, so that another can finish or undo it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class Operation(StrEnum):
    """``release`` is what a removed window or session still owes the cache."""

    FREEZE = "freeze"
    CLONE = "clone"
    THAW = "thaw"
    QUARANTINE = "quarantine"
    RELEASE = "release"


@dataclass(frozen=True, slots=True)
class Debt:
    """What is owed for a prefix under its salt: one pin to give back, chunks to delete by hash.

    ``root`` and ``world_size`` name it to LMCache, ``token_count`` is how much of its tokens the engine could
    take, ``chunk_size`` is in tokens too.
    """

    root: str
    world_size: int
    chunk_size: int
    token_count: int
    pinned: bool
    hashes: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.pinned or bool(self.hashes)


@dataclass(frozen=True, slots=True)
class Intent:
    """``holder`` names the process that is at it; ``snapshot_id`` the tokens that it needs until it has ended."""

    tenant: str
    id: str
    operation: Operation
    window_name: str
    cache_salt: str
    holder: str
    begun_at: datetime
    session_id: str | None = None
    snapshot_id: str | None = None
    debt: Debt | None = None
