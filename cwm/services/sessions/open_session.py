"""Open a session: a conversation whose exact token ids CWM records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from cwm.domain.engine import CacheScope
from cwm.domain.errors import InvalidParameterError
from cwm.domain.names import require_session_id
from cwm.domain.principal import OWNER, TENANT, Principal
from cwm.domain.session import BRANCHED_FROM, OWN, Session, SessionState
from cwm.domain.visibility import circle_of_new
from cwm.ports.clock import Clock
from cwm.ports.registry import Registry
from cwm.services.audit.journal import Journal
from cwm.services.engines.directory import EngineDirectory
from cwm.services.sessions.salt_scopes import SaltScopes


def salt_scope_of(cache_scope: CacheScope, principal: Principal, session_id: str | None) -> str:
    """The salt scope of a new session: its whole tenant, or the lineage that it starts; of a request without one: its principal."""
    if cache_scope is CacheScope.SESSION:
        return scope_of_session(session_id) if session_id else f"{OWNER}{principal.subject}"
    return f"tenant:{principal.tenant}"


def scope_of_session(session_id: str) -> str:
    """The salt scope of one session and what comes from it."""
    return f"session:{session_id}"


@dataclass(frozen=True, slots=True)
class OpenSession:
    registry: Registry
    directory: EngineDirectory
    journal: Journal
    clock: Clock
    scopes: SaltScopes
    cache_scope: CacheScope
    visibility: str = TENANT

    async def __call__(
        self,
        principal: Principal,
        session_id: str | None = None,
        model: str | None = None,
        metadata: dict[str, Any] | None = None,
        visibility: str | None = None,
        origin: str | None = None,
        *,
        listed: bool = True,
    ) -> Session:
        """A new, empty, active session, of the default ``visibility`` if none is given.

        ``origin`` is the turn of another session whose conversation it goes on with. One that a request opens is not ``listed``
        before its first turn has ended.

        CWM-1001, CWM-3001; CWM-1003 for an unserved model, a reserved metadata key or an impossible visibility.
        """
        if any(key.startswith(OWN) for key in metadata or {}):
            raise InvalidParameterError(
                f"Metadata keys that begin with '{OWN}' are CWM's own.", field="metadata"
            )
        circle = circle_of_new(principal, visibility, self.visibility)
        new_id = require_session_id(session_id or f"session_{uuid4().hex[:12]}")
        async with self.journal.entry(principal, "session_create", session_id=new_id):
            identity = await self.directory.asked_for(model, principal.tenant)
            base = salt_scope_of(self.cache_scope, principal, new_id)
            now = self.clock.now()
            session = Session(
                tenant=principal.tenant,
                id=new_id,
                owner=principal.subject,
                model=identity.model,
                state=SessionState.ACTIVE,
                salt_scope=await self.scopes.current(principal.tenant, base),
                token_count=0,
                revision=0,
                created_at=now,
                updated_at=now,
                metadata={**(metadata or {}), **({BRANCHED_FROM: origin} if origin else {})},
                circle=circle,
            )
            return await self.registry.add_session(session, (), listed=listed)

    async def scope_of_none(self, principal: Principal) -> str:
        """The salt scope of a request without a session."""
        base = salt_scope_of(self.cache_scope, principal, None)
        return await self.scopes.current(principal.tenant, base)
