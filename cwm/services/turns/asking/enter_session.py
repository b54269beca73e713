"""Enters the session of a destination: it is read, made active again, or opened."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from cwm.domain.errors import SessionAlreadyExistsError, SessionNotFoundError
from cwm.domain.principal import Principal
from cwm.domain.session import LIVE, Session
from cwm.domain.visibility import Right
from cwm.ports.clock import Clock
from cwm.ports.registry import Registry
from cwm.services.access.sight import session_of
from cwm.services.audit.journal import Journal
from cwm.services.sessions.open_session import OpenSession
from cwm.services.turns.finding.destination import Destination


@dataclass(frozen=True, slots=True)
class EnterSession:
    registry: Registry
    open_session: OpenSession
    journal: Journal
    clock: Clock

    async def existing(self, principal: Principal, destination: Destination) -> Session | None:
        """The destination's session, live if its client chose none of CWM's; None if it has to be opened. CWM-3001 for somebody else's."""
        if destination.is_new:
            return None
        session = destination.session or await self._read(principal, destination.session_id or "")
        if session is None:
            return None
        if not destination.is_captured:
            if session.owner != principal.subject:
                await self.journal.shared(principal, "session", session_id=session.id, owner=session.owner)
            return session
        if session.owner != principal.subject:
            raise SessionAlreadyExistsError(
                f"There is a session '{session.id}' already.", session_id=session.id
            )
        if session.state in LIVE:
            return session
        # A client that goes on with its own conversation knows nothing of states.
        async with self.journal.entry(principal, "session_unfreeze", session_id=session.id):
            return await self.registry.unfreeze(session, self.clock.now()) or session

    async def opened(
        self, principal: Principal, destination: Destination, model: str, visibility: str | None
    ) -> Session:
        """A new session, or the one that another request just opened. CWM-3001 if the id is somebody else's."""
        session_id, new = destination.session_id or "", destination.new_session
        metadata = dict(new.metadata) or None
        try:
            return await self.open_session(
                principal, session_id, model, metadata, visibility, new.origin, listed=False
            )
        except SessionAlreadyExistsError:
            session = await self._read(principal, session_id)
            if session is None or (destination.is_captured and session.owner != principal.subject):
                raise
            return session

    async def _read(self, principal: Principal, session_id: str) -> Session | None:
        with suppress(SessionNotFoundError):
            return await session_of(self.registry, principal, session_id, Right.USE)
        return None
