"""The durable record of sessions, windows, snapshots and chunk references.

Every method takes the tenant and answers about nothing else; those that look across tenants say so
in their names. Each call is one transaction. Absence is None or CWM-2001/2002, damage is CWM-4004, a
database that cannot be reached is CWM-4001 (writing) or CWM-4002 (reading).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from cwm.domain.canary import Canary
from cwm.domain.engine import EngineIdentity, Tier
from cwm.domain.intent import Debt, Intent
from cwm.domain.prefix import TokenIds
from cwm.domain.session import Session, SessionState
from cwm.domain.window import Chunk, Snapshot, Window, WindowList, WindowQuery


@dataclass(frozen=True, slots=True)
class StoredChunks:
    """What a freeze proved: chunks in order, where one copy of each is, and how many each tier holds."""

    chunks: tuple[Chunk, ...]
    storage_tier: Tier
    tiers: dict[str, int]

    @property
    def total_size_bytes(self) -> int:
        return sum(chunk.size_bytes for chunk in self.chunks)


@dataclass(frozen=True, slots=True)
class Dependents:
    """Who would lose something with a window: windows that descend from it, live sessions thawed from it."""

    windows: tuple[str, ...]
    sessions: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.windows or self.sessions)


@dataclass(frozen=True, slots=True)
class Totals:
    """Of one tenant: windows, sessions by state, distinct chunks and the bytes of one copy of each."""

    windows: int
    sessions: dict[str, int]
    chunks: int
    chunk_bytes: int


@dataclass(frozen=True, slots=True)
class Stock:
    """Of all tenants together: sessions by state, windows by durability, 0 where there are none."""

    sessions: Mapping[str, int]
    windows: Mapping[str, int]


class Registry(Protocol):
    # sessions

    async def add_session(
        self, session: Session, token_ids: Sequence[int], intent_id: str | None = None
    ) -> Session:
        """Create a session, and end the intent that it fulfils. CWM-3001 when the id is taken, in any state.

        As it was created: in the salt scope that is in force, unless it was thawed.
        """

    async def session(self, tenant: str, session_id: str, *, any_state: bool = False) -> Session | None:
        """None for a deleted one too, unless ``any_state``: what is left of it while windows refer to it."""

    async def session_tokens(self, tenant: str, session_id: str) -> TokenIds:
        """The exact ids of the last recorded turn; empty before the first. CWM-2001, CWM-4004."""

    async def record_turn(
        self,
        tenant: str,
        session_id: str,
        token_ids: Sequence[int],
        at: datetime,
        metadata: Mapping[str, Any] | None = None,
        revision: int | None = None,
        created_at: datetime | None = None,
    ) -> Session | None:
        """Replace the session's ids (and its metadata, where given), make it active, count the revision up.

        None, and nothing changed, when the session is no longer active or thawed, or, where those are given, no
        longer at ``revision`` or not the one that was made at ``created_at``.
        """

    async def sessions(self, tenant: str, state: SessionState | None, limit: int) -> list[Session]:
        """Newest first, without their metadata."""

    async def live_sessions_with_head(self, tenant: str, salt_scope: str, head: Sequence[int]) -> list[str]:
        """Ids of a scope's sessions that need their chunks and whose first 16 token ids are ``head``'s.

        Active and thawed ones, and frozen ones whose window is still pending: its chunks are on no list yet.
        """

    async def touch_session(self, session: Session, at: datetime) -> bool:
        """Note that a turn of it begins. False, and nothing changed, when it is no longer live or another by now."""

    async def expire_session(self, session: Session, at: datetime) -> bool:
        """Make a live session read-only. False when it moved on, or a turn of it began, since it was read."""

    async def remove_session(
        self,
        tenant: str,
        session_id: str,
        at: datetime,
        cache_salt: str = "",
        debt: Debt | None = None,
        created_at: datetime | None = None,
    ) -> Intent | None:
        """Remove a session and its tokens.

        CWM-2001, also when it is not the one that was made at ``created_at``, where that is given; CWM-3002 for a
        frozen one. While windows refer to it, its id stays taken, and CWM's own metadata is kept for them.
        """

    # windows. What a call begins, it notes as an intent in the same transaction; ``debt`` likewise.

    async def begin_freeze(
        self,
        window: Window,
        token_ids: Sequence[int],
        session_revision: int,
        session_created_at: datetime | None = None,
    ) -> Intent:
        """The window (pending), its snapshot, and its session as frozen; an expired one stays as it is.

        CWM-3003 when the name is taken, CWM-3002 when the session moved on meanwhile, left its salt scope or, where that is
        given, was not made at ``session_created_at``. The snapshot id is the digest of the ids; windows with equal ids
        share it.
        """

    async def finish_freeze(
        self,
        window: Window,
        stored: StoredChunks,
        at: datetime,
        canary: Canary | None = None,
        quota_bytes: int | None = None,
    ) -> Window:
        """Mark a pending window durable, write its chunk references and keep its canary. CWM-2002.

        CWM-4003, and nothing changes, when the tenant's guaranteed windows would exceed ``quota_bytes``.
        """

    async def fail_freeze(
        self, window: Window, reason: str, at: datetime, debt: Debt | None = None
    ) -> Intent | None:
        """Keep the window and its tokens, say that its KV could not be stored. Nothing where it is another by now."""

    async def undo_freeze(
        self, window: Window, session_state: SessionState, debt: Debt | None = None
    ) -> Intent | None:
        """Remove a pending window and give its session back the state it had, in the scope that is in force.

        Nothing where it is durable, another or under another salt by now.
        """

    async def add_clone(
        self, clone: Window, source: str, quota_bytes: int | None = None
    ) -> tuple[Window, Intent]:
        """Add ``clone`` over the snapshot and chunk references of ``source``. CWM-2002, CWM-3003, CWM-4003.

        CWM-4002 when ``source`` is no longer the window that ``clone`` was made after.
        """

    async def proven(self, window: Window, at: datetime) -> None:
        """Note that all chunks of a window were read back. Nothing when it is pending, another or under another salt by now."""

    async def guaranteed_bytes(self, tenant: str) -> int:
        """What counts against the quota: one copy of each chunk that guaranteed windows refer to."""

    async def window(self, tenant: str, name: str) -> Window | None: ...

    async def windows(self, tenant: str, query: WindowQuery) -> WindowList:
        """One page, and how many windows match in all."""

    async def canary(self, tenant: str, snapshot_id: str, cache_salt: str) -> Canary | None:
        """What was decoded after these tokens from the KV under this salt; clones share it."""

    async def begin_quarantine(self, window: Window, at: datetime) -> Intent | None:
        """Note that the window's KV is not to be trusted. None when it is gone, another or under another salt by now."""

    async def store_again(
        self,
        window: Window,
        salt_scope: str,
        cache_salt: str,
        identity: EngineIdentity,
        at: datetime,
        *,
        pinned: bool,
        debt: Debt | None = None,
    ) -> tuple[Window, Intent, Intent | None] | None:
        """Make a window pending again, under this salt and engine and without chunks.

        None when it is gone, another or under another salt by now. Also ends its quarantine.
        """

    async def snapshot(self, tenant: str, snapshot_id: str) -> Snapshot:
        """CWM-4004 when the stored ids are missing or do not match their digest."""

    async def chunks(self, tenant: str, name: str) -> list[Chunk]:
        """The chunk references of a window, by position."""

    async def dependents(self, tenant: str, name: str) -> Dependents: ...

    async def chunks_of_other_windows(self, tenant: str, name: str) -> set[str]:
        """Hashes of this window's chunks that another window under the same cache_salt refers to."""

    async def remove_window(self, window: Window, at: datetime, debt: Debt | None = None) -> Intent | None:
        """Remove the window, its references, and its snapshot when nothing else needs it. CWM-2002.

        CWM-4002, and nothing changes, when it is another, was stored otherwise or is being stored since it was read:
        ``debt`` is not what it has. With its last window a frozen or deleted session goes too, and its tokens with it.
        """

    # intents

    async def begin_thaw(self, window: Window, session_id: str, at: datetime) -> Intent:
        """CWM-2002 when the window is gone, CWM-4002 when it changed, CWM-3001 when the session id is taken."""

    async def end_intent(self, tenant: str, intent_id: str) -> None:
        """It is done or undone; tokens that only it needed go with it."""

    async def hand_over(self, tenant: str, intent_id: str) -> None:
        """Nobody is at it any more: whoever reconciles next goes on. Nothing when another process is at it by now."""

    async def take_over(self, intent: Intent, holder: str) -> bool:
        """Go on in another's place; False when somebody else already does."""

    async def intents(self, tenant: str, window_name: str) -> list[Intent]: ...

    async def intents_of_every_tenant(self) -> list[Intent]:
        """The oldest first."""

    # salt scopes

    async def current_scope(self, tenant: str, base: str) -> str:
        """The scope that new sessions of ``base`` get: itself, until it was retired."""

    async def retire_scope(self, tenant: str, salt_scope: str) -> str:
        """Replace a scope whose KV is not to be trusted. The one in force after.

        Sessions of it that can be gone on with or frozen move on, and those that a freeze gives back.
        """

    # upkeep: lists are at most ``limit`` long

    async def salts_of_every_tenant(self) -> list[str]:
        """Every salt that a window has."""

    async def pinned_chunks_of_every_tenant(self, cache_salt: str) -> dict[str, int]:
        """By chunk hash, how many windows hold a pin on it."""

    async def windows_of_every_tenant(self, cache_salt: str) -> list[Window]:
        """Every window under a salt."""

    async def unreferenced(self, tenant: str, cache_salt: str, hashes: Sequence[str]) -> list[str]:
        """Those of ``hashes`` that no window refers to."""

    async def windows_to_prove_of_every_tenant(self, limit: int, before: datetime) -> list[Window]:
        """Guaranteed windows that were not proven, or whose freeze failed, since ``before``: the longest ago first."""

    async def expired_windows_of_every_tenant(self, at: datetime, limit: int) -> list[Window]:
        """Windows whose time is over by ``at``, but for those that are still being stored."""

    async def idle_sessions_of_every_tenant(self, since: datetime, limit: int) -> list[Session]:
        """Live sessions without a turn since then."""

    async def expired_sessions_of_every_tenant(self, since: datetime, limit: int) -> list[Session]:
        """Sessions that had expired by then."""

    # whole

    async def totals(self, tenant: str) -> Totals: ...

    async def stock_of_every_tenant(self) -> Stock: ...

    async def ping(self) -> None:
        """Raise CWM-4002 unless the database answers."""
