"""The durable record of sessions, windows, snapshots and chunk references.

Every method takes the tenant and answers about nothing else; the two that look across tenants say so
in their names. Each call is one transaction. Absence is None or CWM-2001/2002, damage is CWM-4004, a
database that cannot be reached is CWM-4001 (writing) or CWM-4002 (reading).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from cwm.domain.canary import Canary
from cwm.domain.engine import Tier
from cwm.domain.prefix import TokenIds
from cwm.domain.session import Session, SessionState
from cwm.domain.window import Chunk, Snapshot, Window, WindowQuery


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


class Registry(Protocol):
    # sessions

    async def add_session(self, session: Session, token_ids: Sequence[int]) -> None:
        """Create a session. CWM-3001 when the id is taken, also by another state."""

    async def session(self, tenant: str, session_id: str) -> Session | None: ...

    async def session_tokens(self, tenant: str, session_id: str) -> TokenIds:
        """The exact ids of the last recorded turn; empty before the first. CWM-2001, CWM-4004."""

    async def record_turn(
        self,
        tenant: str,
        session_id: str,
        token_ids: Sequence[int],
        at: datetime,
        metadata: Mapping[str, Any] | None = None,
    ) -> Session | None:
        """Replace the session's ids (and its metadata, where given), make it active, count the revision up.

        None, and nothing changed, when the session is no longer active or thawed.
        """

    async def sessions(self, tenant: str, state: SessionState | None, limit: int) -> list[Session]:
        """Newest first."""

    async def live_sessions_with_head(self, tenant: str, salt_scope: str, head: Sequence[int]) -> list[str]:
        """Ids of a scope's sessions that need their chunks and whose first 16 token ids are ``head``'s.

        Active and thawed ones, and frozen ones whose window is still pending: its chunks are on no list yet.
        """

    # windows

    async def begin_freeze(self, window: Window, token_ids: Sequence[int], session_revision: int) -> None:
        """Record the intent: the window (pending), its snapshot, and its session as frozen.

        CWM-3003 when the name is taken, CWM-3002 when the session moved on meanwhile. The snapshot id
        is the digest of the ids; windows with equal ids share it.
        """

    async def finish_freeze(
        self, tenant: str, name: str, stored: StoredChunks, at: datetime, canary: Canary | None = None
    ) -> Window:
        """Mark a pending window durable, write its chunk references and keep its canary. CWM-2002."""

    async def fail_freeze(self, tenant: str, name: str, reason: str, at: datetime) -> None:
        """Keep the window and its tokens, say that its KV could not be stored."""

    async def undo_freeze(self, tenant: str, name: str, session_state: SessionState) -> None:
        """Remove a pending window and give its session back the state it had."""

    async def add_clone(self, clone: Window, source: str) -> Window:
        """Add ``clone`` over the snapshot and chunk references of ``source``. CWM-2002, CWM-3003."""

    async def set_pinned(self, tenant: str, name: str, pinned: bool) -> bool:
        """Record that a window's pins are held or released. False when it already was so."""

    async def window(self, tenant: str, name: str) -> Window | None: ...

    async def windows(self, tenant: str, query: WindowQuery) -> tuple[list[Window], int]:
        """One page, and how many windows match in all."""

    async def canary(self, tenant: str, snapshot_id: str, cache_salt: str) -> Canary | None:
        """What was decoded after these tokens from the KV under this salt; clones share it."""

    async def store_again(
        self, tenant: str, name: str, salt_scope: str, cache_salt: str, at: datetime
    ) -> Window | None:
        """Make a window pending again, under another salt and without chunks. None when it is gone."""

    async def snapshot(self, tenant: str, snapshot_id: str) -> Snapshot:
        """CWM-4004 when the stored ids are missing or do not match their digest."""

    async def chunks(self, tenant: str, name: str) -> list[Chunk]:
        """The chunk references of a window, by position."""

    async def dependents(self, tenant: str, name: str) -> Dependents: ...

    async def chunks_of_other_windows(self, tenant: str, name: str) -> set[str]:
        """Hashes of this window's chunks that another window under the same cache_salt refers to."""

    async def remove_window(self, tenant: str, name: str) -> None:
        """Remove the window, its references, and its snapshot when no other window has it. CWM-2002.

        With its last window a frozen session goes too, and its tokens with it.
        """

    # salt scopes

    async def current_scope(self, tenant: str, base: str) -> str:
        """The scope that new sessions of ``base`` get: itself, until it was retired."""

    async def retire_scope(self, tenant: str, salt_scope: str) -> str:
        """Replace a scope whose KV is not to be trusted; live sessions of it move on. The one in force after."""

    # whole

    async def totals(self, tenant: str) -> Totals: ...

    async def pending_windows_of_every_tenant(self) -> list[Window]:
        """Intents a crash may have left: windows whose freeze has neither finished nor failed."""

    async def ping(self) -> None:
        """Raise CWM-4002 unless the database answers."""
