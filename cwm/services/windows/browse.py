"""Read windows and sessions: lists, single records, and where their chunks are now."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from cwm.domain.canary import Canary
from cwm.domain.cursor import CursorFault
from cwm.domain.engine import EngineIdentity, Tier
from cwm.domain.errors import CwmError, InvalidParameterError
from cwm.domain.list_cursor import ListClaim, ListCursors
from cwm.domain.names import require_session_id, require_window_name
from cwm.domain.principal import Principal
from cwm.domain.session import Session, SessionMark, SessionQuery
from cwm.domain.visibility import Right, circle_of, has_everywhere, may
from cwm.domain.window import Chunk, Window, WindowQuery
from cwm.ports.kv_tier import KvTier, Placement
from cwm.ports.registry import Dependents, Registry
from cwm.services.access.sight import session_of, window_of
from cwm.services.audit.journal import Journal
from cwm.services.engines.directory import EngineDirectory
from cwm.services.kv.prefix import Prefix, fitting

MAX_PAGE: Final = 100


@dataclass(frozen=True, slots=True)
class WindowPage:
    """One page. ``next_cursor`` starts the next page and is None on the last; ``total`` is a lower bound unless exact."""

    windows: list[Window]
    total: int
    total_exact: bool
    next_cursor: str | None

    @property
    def has_more(self) -> bool:
        return self.next_cursor is not None


@dataclass(frozen=True, slots=True)
class SessionPage:
    """One page of sessions, without their metadata. ``next_cursor`` is None on the last."""

    sessions: list[Session]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class BlockStatus:
    """One chunk. ``tiers`` that have it, by LMCache's directory; empty if none has it or LMCache does not answer."""

    hash: str
    size_bytes: int
    tiers: tuple[Tier, ...]


@dataclass(frozen=True, slots=True)
class Residency:
    """Where a prefix is now. ``hit_rate`` is the share (0-1) of its chunks that at least one tier has.

    It is None if LMCache does not answer or the engine has none.
    """

    blocks: tuple[BlockStatus, ...]
    hit_rate: float | None


@dataclass(frozen=True, slots=True)
class WindowStatus:
    window: Window
    residency: Residency
    updated_at: datetime
    canary: Canary | None = None


@dataclass(frozen=True, slots=True)
class SessionStatus:
    session: Session
    residency: Residency


@dataclass(frozen=True, slots=True)
class Lineage:
    """What came from a window, as far as a principal sees it, and the canary that its thaws are compared with."""

    dependents: Dependents
    canary: Canary | None


@dataclass(frozen=True, slots=True)
class Browse:
    registry: Registry
    kv_tier: KvTier
    directory: EngineDirectory
    cursors: ListCursors
    cursor_ttl: timedelta
    journal: Journal

    async def windows(
        self,
        principal: Principal,
        query: WindowQuery,
        cursor: str | None = None,
        visibility: str | None = None,
    ) -> WindowPage:
        """One page of the windows that the principal sees, from ``cursor`` on if it is given; only those of a ``visibility`` if given.

        CWM-1003 for a page size or offset out of bounds, and for a cursor that has expired, or is of another reader
        or query. Who sees only the records of other windows finds these neither by words nor by tags.
        """
        right = Right.CONTENTS if query.search or query.tags else Right.RECORD
        query = replace(query, circles=_circles(principal, visibility, right))
        if not 1 <= query.limit <= MAX_PAGE or query.offset < 0:
            raise InvalidParameterError(
                f"limit is 1 to {MAX_PAGE}, offset at least 0.", limit=query.limit, offset=query.offset
            )
        if query.model is not None:
            query = replace(query, model=self.directory.meant(query.model))
        if cursor is not None:
            if query.offset:
                raise InvalidParameterError("Give offset or cursor, not both.", field="cursor")
            query = replace(query, after=(await self._claim(principal, cursor)).require(query))
        page = await self.registry.windows(principal.tenant, query)
        next_cursor = None
        if page.has_more:
            mark = query.mark(page.windows[-1])
            next_cursor = self.cursors.make(mark, principal, query, self._expires_at())
        windows = [_veiled(principal, window) for window in page.windows]
        return WindowPage(windows, page.total, page.total_exact, next_cursor)

    async def failed_windows(self, principal: Principal, most: int) -> list[Window]:
        """At most so many of the tenant's windows that could not be stored and that the principal sees, the newest first."""
        circles = _circles(principal, None, Right.RECORD)
        failed = await self.registry.failed_windows(principal.tenant, most, circles)
        return [_veiled(principal, window) for window in failed]

    def _expires_at(self) -> datetime:
        return self.journal.clock.now() + self.cursor_ttl

    async def _claim(self, principal: Principal, cursor: str) -> ListClaim:
        try:
            return self.cursors.read(cursor, principal, self.journal.clock.now())
        except InvalidParameterError as error:
            if error.context.get("reason") == CursorFault.FOREIGN:
                await self.journal.foreign(principal, "cursor")
            raise

    async def sessions(
        self,
        principal: Principal,
        query: SessionQuery,
        cursor: str | None = None,
        visibility: str | None = None,
    ) -> SessionPage:
        """One page of the sessions that the principal sees. CWM-1003 for a limit out of bounds, and for cursors as in ``windows``.

        A search for what they are called is in those that it may read.
        """
        right = Right.RECORD if query.called is None else Right.CONTENTS
        query = replace(query, circles=_circles(principal, visibility, right))
        if not 1 <= query.limit <= MAX_PAGE:
            raise InvalidParameterError(f"limit is 1 to {MAX_PAGE}.", limit=query.limit)
        if cursor is not None:
            query = replace(query, after=(await self._claim(principal, cursor)).require_sessions(query))
        sessions = await self.registry.sessions(principal.tenant, replace(query, limit=query.limit + 1))
        page = sessions[: query.limit]
        next_cursor = None
        if len(sessions) > query.limit:
            mark = SessionMark(page[-1].created_at, page[-1].id)
            next_cursor = self.cursors.make(mark, principal, query, self._expires_at())
        return SessionPage(page, next_cursor)

    async def window(self, principal: Principal, name: str) -> WindowStatus:
        """A window and where its chunks are now. CWM-1002, CWM-2002."""
        require_window_name(name)
        window = await window_of(self.registry, principal, name, Right.RECORD)
        snapshot = await self.registry.snapshot(principal.tenant, window.snapshot_id)
        token_ids = fitting(snapshot.token_ids, window.identity)
        prefix = Prefix(token_ids, window.cache_salt, window.identity)
        chunks = await self.registry.chunks(principal.tenant, name)
        canary = await self.registry.canary(principal.tenant, window.snapshot_id, window.cache_salt)
        return WindowStatus(
            _veiled(principal, window), await self._residency(prefix, chunks), window.updated_at, canary
        )

    async def lineage(self, principal: Principal, name: str) -> Lineage:
        """What came from a window, and what proves it. CWM-1002, CWM-2002."""
        require_window_name(name)
        window = await window_of(self.registry, principal, name, Right.RECORD)
        circles = _circles(principal, None, Right.RECORD)
        dependents = await self.registry.dependents(principal.tenant, name, circles)
        canary = await self.registry.canary(principal.tenant, window.snapshot_id, window.cache_salt)
        return Lineage(dependents, canary)

    async def windows_of(self, principal: Principal, session_id: str) -> list[Window]:
        """The newest 200 windows that were frozen from a session, without those that the principal does not see."""
        windows = await self.registry.windows_of_session(principal.tenant, require_session_id(session_id))
        return [
            _veiled(principal, window) for window in windows if may(principal, window.circle, Right.RECORD)
        ]

    async def session(self, principal: Principal, session_id: str) -> SessionStatus:
        """A session and where its chunks are now. CWM-1001, CWM-2001."""
        session = await self.record(principal, session_id)
        identity = await self._identity(session)
        if identity is None or session.token_count == 0:
            return SessionStatus(session, Residency((), None))
        token_ids = await self.registry.session_tokens(principal.tenant, session_id)
        salt = self.directory.salt(principal.tenant, session.salt_scope, identity)
        prefix = Prefix(fitting(token_ids, identity), salt, identity)
        return SessionStatus(session, await self._residency(prefix, []))

    async def record(self, principal: Principal, session_id: str, *, any_state: bool = False) -> Session:
        """A session, for which no engine is asked; a deleted one only in ``any_state``. CWM-1001, CWM-2001."""
        require_session_id(session_id)
        session = await session_of(self.registry, principal, session_id, Right.RECORD, any_state=any_state)
        if may(principal, session.circle, Right.CONTENTS):
            return session
        return replace(session, metadata=session.own_metadata)

    async def _identity(self, session: Session) -> EngineIdentity | None:
        """None while the engine does not answer: the record can be read without it."""
        try:
            return await self.directory.of(session)
        except CwmError:
            return None

    async def _residency(self, prefix: Prefix, chunks: list[Chunk]) -> Residency:
        try:
            placements = await self.kv_tier.lookup(prefix.key) if prefix.chunk_count else []
        except CwmError:
            return Residency(tuple(BlockStatus(c.hash, c.size_bytes, ()) for c in chunks), None)
        placement_by_hash = {placement.hash: placement for placement in placements}
        blocks = (
            tuple(_block(chunk, placement_by_hash.get(chunk.hash)) for chunk in chunks)
            if chunks
            else tuple(_block(Chunk(p.hash, p.size_bytes), p) for p in placements)
        )
        resident = sum(bool(block.tiers) for block in blocks)
        return Residency(blocks, resident / prefix.chunk_count if prefix.chunk_count else None)


def _circles(principal: Principal, visibility: str | None, right: Right) -> frozenset[str] | None:
    """The circles of a list: of one visibility, those of the principal, or all (None)."""
    if visibility is not None:
        return frozenset({circle_of(visibility, principal)})
    return None if has_everywhere(principal, right) else principal.circles


def _veiled(principal: Principal, window: Window) -> Window:
    """The window without what somebody wrote about its contents, if the principal sees only its record."""
    if may(principal, window.circle, Right.CONTENTS):
        return window
    return replace(window, description="", tags=())


def _block(chunk: Chunk, placement: Placement | None) -> BlockStatus:
    tiers = tuple(sorted(placement.tiers)) if placement else ()
    return BlockStatus(chunk.hash, chunk.size_bytes, tiers)
