"""Intents: operations that a gateway started and has not finished, so that another can finish or undo them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class Operation(StrEnum):
    """The kinds of operation. ``release`` cleans up the cache after a removed window or session."""

    FREEZE = "freeze"
    CLONE = "clone"
    THAW = "thaw"
    QUARANTINE = "quarantine"
    RELEASE = "release"


@dataclass(frozen=True, slots=True)
class Debt:
    """Cleanup still owed to the cache for a prefix under its salt: one pin to give back, chunks to delete by hash.

    ``root`` and ``world_size`` name the prefix to LMCache; ``token_count`` is how many of its tokens the engine
    could accept; ``chunk_size`` is in tokens too.
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
    """One unfinished operation.

    ``holder`` names the process that works on it; ``snapshot_id`` names the tokens that it needs until it ends.
    """

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
