"""The durable record of sessions, windows, snapshots and chunk references.

Every method takes a tenant and answers only about that tenant; methods that look across tenants say so in their
names. Each call is one transaction. Errors: absence is None or CWM-2001/2002, damage is CWM-4004, an unavailable
database is CWM-4001 (writing) or CWM-4002 (reading).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from cwm.domain.autosave import UnsavedQuery
from cwm.domain.canary import Canary
from cwm.domain.engine import EngineIdentity, Tier
from cwm.domain.intent import Debt, Intent
from cwm.domain.prefix import TokenIds
from cwm.domain.session import Session, SessionQuery, SessionsSince, SessionState
from cwm.domain.turn import Turn
from cwm.domain.upgrade import Upgrade, WindowCounts
from cwm.domain.window import Chunk, Snapshot, Window, WindowList, WindowQuery
from cwm.ports.engine_records import EngineRecords
from cwm.ports.turns import TurnRecords


@dataclass(frozen=True, slots=True)
class StoredChunks:
    """What a freeze proved: the chunks in order, the tier that has a copy of each, and the number of chunks by tier."""

    chunks: tuple[Chunk, ...]
    storage_tier: Tier
    tiers: dict[str, int]

    @property
    def total_size_bytes(self) -> int:
        return sum(chunk.size_bytes for chunk in self.chunks)


@dataclass(frozen=True, slots=True)
class Dependents:
    """What depends on a window: the windows that descend from it, and the live sessions thawed from it.

    ``others``: how many more there are, outside the circles that were asked about.
    """

    windows: tuple[str, ...]
    sessions: tuple[str, ...]
    others: int = 0

    def __bool__(self) -> bool:
        return bool(self.windows or self.sessions or self.others)


@dataclass(frozen=True, slots=True)
class Totals:
    """Totals of one tenant: windows, sessions by state, distinct chunks, and the bytes of one copy of each chunk."""

    windows: int
    sessions: dict[str, int]
    chunks: int
    chunk_bytes: int


@dataclass(frozen=True, slots=True)
class Stock:
    """Totals over all tenants: sessions by state and windows by durability, with 0 where there are none."""

    sessions: Mapping[str, int]
    windows: Mapping[str, int]


class Registry(TurnRecords, EngineRecords, Protocol):
    # sessions

    async def add_session(
        self,
        session: Session,
        token_ids: Sequence[int],
        intent_id: str | None = None,
        source_turn: str | None = None,
        *,
        listed: bool = True,
    ) -> Session:
        """Create a session and end the intent that it fulfils. CWM-3001 when the id is taken, in any state.

        One that is not ``listed`` is in no list and no count before a turn has ended in it.
        Token ids become its first turn, with the messages and the profile of ``source_turn`` if that is still recorded.
        Returns the session as created: in the current salt scope, unless it was thawed.
        """

    async def session(self, tenant: str, session_id: str, *, any_state: bool = False) -> Session | None:
        """The session; None when it is deleted, too, unless ``any_state``.

        The record of a deleted session stays while windows refer to it.
        """

    async def session_tokens(self, tenant: str, session_id: str) -> TokenIds:
        """The exact token ids of the current turn's context; empty before the first. CWM-2001, CWM-4004."""

    async def sessions(self, tenant: str, query: SessionQuery) -> list[Session]:
        """At most ``query.limit`` sessions, without their metadata."""

    async def share_session(self, session: Session, circle: str) -> bool:
        """Put a session into another circle. False when it is deleted, or not that session."""

    async def unanswered_sessions_of_every_tenant(self, before: datetime, limit: int) -> list[Session]:
        """Sessions that are not listed, in which no turn is in flight, and which were last used before then."""

    async def forget_unanswered(self, session: Session) -> bool:
        """Remove such a session. False if it was used since it was read, or a turn is in flight."""

    async def live_sessions_with_head(self, tenant: str, salt_scope: str, head: Sequence[int]) -> list[str]:
        """Ids of the scope's sessions that still need their chunks and whose first 16 token ids equal those of ``head``.

        These are active and thawed sessions, and frozen ones whose window is still pending: its chunk references
        are not written yet.
        """

    async def expire_session(self, session: Session, at: datetime) -> bool:
        """Make a live session read-only. False when it changed, or a turn of it started, since it was read."""

    async def merge_sessions(self, source: Session, target: Session, at: datetime) -> Session | None:
        """Make the turns of ``source`` turns of ``target``, in the order in which they were asked, and remove ``source``.

        The first turn of each tree, but of the oldest, gets the parent among the other session's earlier turns with which it shares
        the longest prefix. Windows, tags and messages move along. The current turn is the one of both that was asked last.
        Returns the target; None, and nothing changes, when either changed since it was read or the target is not live.
        CWM-3002 (retryable) while a turn of either is in flight, CWM-4002 (retryable) while a window is being stored.
        """

    async def remove_session(
        self,
        tenant: str,
        session_id: str,
        at: datetime,
        cache_salt: str = "",
        debt: Debt | None = None,
        created_at: datetime | None = None,
    ) -> Intent | None:
        """Remove a session and its turns. Returns the intent of releasing its ``debt``, if any.

        CWM-2001, also when ``created_at`` is given and differs; CWM-3002 for a frozen session. While windows refer
        to it, its id stays taken and CWM's own metadata is kept for them.
        """

    # windows. A call that begins an operation, or leaves ``debt``, records an intent in the same transaction.

    async def begin_freeze(
        self,
        window: Window,
        token_ids: Sequence[int],
        session_revision: int | None,
        session_created_at: datetime | None = None,
    ) -> Intent:
        """Add the window (pending) and its snapshot, and mark its session as frozen; an expired session stays expired.

        With no ``session_revision`` the session stays as it is, in any state.
        CWM-3003 when the name is taken. CWM-3002 when the session changed since ``session_revision``, left its salt
        scope, or, if ``session_created_at`` is given, was not created then. The intent has the id of the snapshot,
        which windows with equal token ids share.
        """

    async def finish_freeze(
        self,
        window: Window,
        stored: StoredChunks,
        at: datetime,
        canary: Canary | None = None,
        quota_bytes: int | None = None,
    ) -> Window:
        """Mark a pending window durable, and store its chunk references and its canary. CWM-2002.

        CWM-4003, and nothing changes, when the tenant's guaranteed windows would exceed ``quota_bytes``.
        """

    async def fail_freeze(
        self, window: Window, reason: str, at: datetime, debt: Debt | None = None
    ) -> Intent | None:
        """Mark the window as failed, with ``reason``; it and its tokens stay.

        None when the window has been replaced.
        """

    async def undo_freeze(
        self, window: Window, session_state: SessionState | None, debt: Debt | None = None
    ) -> Intent | None:
        """Remove a pending window and return its session to ``session_state`` (None: it stays), in the current salt scope.

        None when the window is durable, has been replaced, or is under another salt.
        """

    async def add_clone(
        self, clone: Window, source: str, quota_bytes: int | None = None
    ) -> tuple[Window, Intent]:
        """Add ``clone``, which shares the snapshot and chunk references of ``source``. CWM-2002, CWM-3003, CWM-4003.

        CWM-4002 when ``source`` is no longer the window that ``clone`` was derived from.
        """

    async def rename_window(self, window: Window, name: str, at: datetime) -> Window:
        """Give the window another name, also in what came from it; it is not automatic any more. CWM-2002, CWM-3003.

        CWM-4002 (retryable), and nothing changes, while it is being stored or thawed, and when it was replaced since it was read.
        """

    async def proven(self, window: Window, at: datetime) -> None:
        """Record that all chunks of a window were read back.

        Nothing changes when the window is pending, has been replaced, or is under another salt.
        """

    async def guaranteed_bytes(self, tenant: str) -> int:
        """Bytes that count against the quota: one copy of each chunk that guaranteed windows refer to."""

    async def window(self, tenant: str, name: str) -> Window | None: ...

    async def windows(self, tenant: str, query: WindowQuery) -> WindowList:
        """One page of the matching windows, and how many match in total.

        CWM-1003 for an offset over 10,000 into the windows of several circles that are not all there are.
        """

    async def failed_windows(
        self, tenant: str, most: int, circles: frozenset[str] | None = None
    ) -> list[Window]:
        """At most so many windows whose freeze failed, in one of ``circles`` (any if None); the newest first."""

    async def share_window(self, window: Window, circle: str, at: datetime) -> bool:
        """Put a window into another circle. False when it is gone or has been replaced."""

    async def keep_window(self, window: Window, until: datetime | None, at: datetime) -> bool:
        """Let a window be deleted at ``until``, or never. False when it is gone or has been replaced."""

    async def canary(self, tenant: str, snapshot_id: str, cache_salt: str) -> Canary | None:
        """The canary of these tokens' KV under this salt; clones share it. The digest of the tokens will do for the id.

        None if there is none, or one that an earlier version of CWM recorded.
        """

    async def record_canary(self, window: Window, canary: Canary) -> bool:
        """Let the window, and those that share its tokens and its salt, have this canary. False when it is gone, or under another salt."""

    async def doubt_windows(self, window: Window, hashes: Sequence[str]) -> list[str]:
        """Note that these chunks of the window held wrong KV; returns the names of the other windows that refer to one of them.

        All these windows are unproven from now on, and nothing is proven of the sessions of the window's salt scope.
        """

    async def begin_quarantine(self, window: Window, at: datetime) -> Intent | None:
        """Record that the window's KV must not be trusted.

        None when the window is gone, has been replaced, or is under another salt.
        """

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
        """Make a window pending again, under this salt and engine and without chunk references.

        Also ends its quarantine. None when the window is gone, has been replaced, or is under another salt.
        """

    async def begin_renewal(self, window: Window, cache_salt: str, debt: Debt, at: datetime) -> Intent | None:
        """Record what a window will have under another salt as a debt, before it has anything there.

        None when the window is gone, has been replaced, is under another salt, or is being stored.
        """

    async def finish_renewal(
        self,
        window: Window,
        renewed: Window,
        stored: StoredChunks,
        intent: Intent,
        at: datetime,
        canary: Canary | None = None,
        debt: Debt | None = None,
    ) -> tuple[Window, Intent | None] | None:
        """Let a window have what was stored under the salt, the engine and the pin of ``renewed``, in place of what it had.

        Ends the ``intent``, and records ``debt``, what the window had before, in the same transaction. None, and nothing
        changes, when :meth:`begin_renewal` would be None.
        """

    async def snapshot(self, tenant: str, snapshot_id: str) -> Snapshot:
        """The snapshot. CWM-4004 when the stored ids are missing or do not match their digest."""

    async def chunks(self, tenant: str, name: str) -> list[Chunk]:
        """The chunk references of a window, by position."""

    async def dependents(self, tenant: str, name: str, circles: frozenset[str] | None = None) -> Dependents:
        """What depends on a window, by name where it is in one of ``circles`` (in any if None)."""

    async def chunks_of_other_windows(self, tenant: str, name: str) -> set[str]:
        """Hashes of this window's chunks that other windows under the same cache_salt refer to as well."""

    async def remove_window(self, window: Window, at: datetime, debt: Debt | None = None) -> Intent | None:
        """Remove the window, its references, and its snapshot when nothing else needs it. CWM-2002.

        CWM-4002, and nothing changes, when since it was read the window was replaced, stored under another salt, or
        began to be stored: ``debt`` would not match. A frozen session stays, as an expired one once its last window is
        gone; the record of a deleted session goes with that window.
        """

    # intents

    async def begin_thaw(self, window: Window, session_id: str, at: datetime) -> Intent:
        """Record the intent of a thaw.

        CWM-2002 when the window is gone, CWM-4002 when it changed, CWM-3001 when the session id is taken.
        """

    async def end_intent(self, tenant: str, intent_id: str) -> None:
        """Remove a finished or undone intent, and the tokens that only it needed."""

    async def hand_over(self, tenant: str, intent_id: str) -> None:
        """Release the intent so that the next reconciliation continues it.

        Nothing changes when another process holds it.
        """

    async def take_over(self, intent: Intent, holder: str) -> bool:
        """Make ``holder`` the intent's holder; False when somebody else has taken it over already."""

    async def intents(self, tenant: str, window_name: str) -> list[Intent]: ...

    async def intents_of_every_tenant(self) -> list[Intent]:
        """All intents, the oldest first."""

    # salt scopes

    async def current_scope(self, tenant: str, base: str) -> str:
        """The salt scope for new sessions of ``base``: ``base`` itself until it is retired."""

    async def retire_scope(self, tenant: str, salt_scope: str) -> str:
        """Replace a scope whose KV must not be trusted; returns the scope that is current afterwards.

        Sessions of the old scope move to the new one if they can be continued or frozen, or once an undone freeze
        returns them.
        """

    # upkeep: lists are at most ``limit`` long

    async def salts_of_every_tenant(self) -> list[str]:
        """Every salt that a window uses."""

    async def pinned_chunks_of_every_tenant(self, cache_salt: str) -> dict[str, int]:
        """The number of windows that hold a pin, by chunk hash."""

    async def windows_of_every_tenant(self, cache_salt: str) -> list[Window]:
        """Every window under a salt."""

    async def unreferenced(self, tenant: str, cache_salt: str, hashes: Sequence[str]) -> list[str]:
        """Those of ``hashes`` that no window refers to."""

    async def windows_to_prove_of_every_tenant(self, limit: int, before: datetime) -> list[Window]:
        """Guaranteed windows that were not proven, or whose freeze failed, since ``before``; the longest ago first."""

    async def unproven_windows_of_every_tenant(self, limit: int) -> list[Window]:
        """Durable windows with chunks whose canary is missing or unproven, the newest first."""

    async def windows_to_renew_of_every_tenant(self, upgrade: Upgrade, limit: int) -> list[Window]:
        """Guaranteed windows of a model that is upgraded, stored by another deployment or by none; the longest ago first."""

    async def upgraded_windows_of_every_tenant(self, upgrade: Upgrade) -> WindowCounts:
        """How many guaranteed windows of the model the new deployment has stored, and how many are left."""

    async def expired_windows_of_every_tenant(self, at: datetime, limit: int) -> list[Window]:
        """Windows that expired by ``at``, except those still being stored."""

    async def idle_sessions_of_every_tenant(self, query: SessionsSince) -> list[Session]:
        """Live sessions without a turn since then, those used the longest ago first."""

    async def unsaved_sessions_of_every_tenant(self, query: UnsavedQuery) -> list[Session]:
        """Sessions that are due to be saved, those used the longest ago first.

        The context of a session that has no automatic window yet counts from its branch on, its time from its creation.
        """

    async def windows_of_session(self, tenant: str, session_id: str) -> list[Window]:
        """The newest 200 windows that were frozen from a session."""

    async def automatic_windows(self, tenant: str, session_id: str) -> list[Window]:
        """The automatic windows of a session, the newest first."""

    async def expired_sessions_of_every_tenant(self, query: SessionsSince) -> list[Session]:
        """Sessions that had expired by then, the longest ago first."""

    # one person

    async def windows_about(self, tenant: str, owner: str) -> list[Window]:
        """The windows that somebody made, and those that anybody made of their sessions."""

    async def turns_elsewhere(self, tenant: str, author: str) -> list[Turn]:
        """The ended turns that somebody asked in sessions of others, the oldest first."""

    # totals and health

    async def totals(self, tenant: str) -> Totals: ...

    async def stock_of_every_tenant(self) -> Stock: ...

    async def ping(self) -> None:
        """Raise CWM-4002 unless the database answers."""
