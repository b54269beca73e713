"""End a session: remove its tokens and free the chunks that nothing else refers to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cwm.domain.engine import EngineIdentity
from cwm.domain.errors import CwmError, SessionNotActiveError, TurnInFlightError
from cwm.domain.names import require_session_id
from cwm.domain.prefix import TokenIds, common_length
from cwm.domain.principal import Principal
from cwm.domain.session import Session, SessionState
from cwm.domain.visibility import Right
from cwm.ports.clock import Clock
from cwm.ports.kv_tier import KvTier
from cwm.ports.registry import Registry
from cwm.services.access.sight import session_of
from cwm.services.aside import to_its_end
from cwm.services.audit.journal import Journal, of_another
from cwm.services.engines.directory import EngineDirectory
from cwm.services.kv.neighbours import neighbours
from cwm.services.kv.prefix import Prefix, fitting
from cwm.services.kv.release import Release, debt_of


@dataclass(frozen=True, slots=True)
class EndSession:
    """``in_flight(tenant, session_id)``: whether a turn of the session is running in this gateway."""

    registry: Registry
    kv_tier: KvTier
    directory: EngineDirectory
    in_flight: Callable[[str, str], bool]
    journal: Journal
    clock: Clock
    release: Release

    async def __call__(self, principal: Principal, session_id: str) -> None:
        """Delete an active, thawed or expired session. Its windows stay.

        CWM-1001, CWM-2001; CWM-3002 while a turn is in flight, and for a frozen session: delete its windows first.
        """
        require_session_id(session_id)
        async with self.journal.entry(principal, "session_delete", session_id=session_id) as details:
            session = await session_of(self.registry, principal, session_id, Right.DELETE)
            details.update(of_another(principal, session.owner))
            if session.state is SessionState.FROZEN:
                raise SessionNotActiveError(
                    f"Session '{session_id}' is frozen: delete its windows first.", session_id=session_id
                )
            if self.in_flight(principal.tenant, session_id):
                raise TurnInFlightError(
                    f"Session '{session_id}' has a turn in flight; delete it when the turn has ended.",
                    session_id=session_id,
                    in_flight=True,
                )
            await to_its_end(self.now(session))

    async def now(self, session: Session) -> None:
        """Remove the session. Its chunks are freed if the engine is there to name them; else they age out."""
        prefix = await self._prefix(session)
        hashes = await self._unshared(session, prefix) if prefix else ()
        salt = prefix.cache_salt if prefix else ""
        debt = debt_of(prefix, pinned=False, hashes=hashes) if prefix else None
        intent = await self.registry.remove_session(
            session.tenant, session.id, self.clock.now(), salt, debt, session.created_at
        )
        await self.release(intent)

    async def _prefix(self, session: Session) -> Prefix | None:
        try:
            identity: EngineIdentity = await self.directory.of(session)
            token_ids = await self.registry.session_tokens(session.tenant, session.id)
        except CwmError:
            return None
        salt = self.directory.salt(session.tenant, session.salt_scope, identity)
        prefix = Prefix(fitting(token_ids, identity), salt, identity)
        return prefix if prefix.chunk_count else None

    async def _unshared(self, session: Session, prefix: Prefix) -> tuple[str, ...]:
        hashes = self.kv_tier.expected_hashes(prefix.key) or []
        shared_count = await self._shared_with_others(session, prefix.token_ids) // (
            prefix.identity.stored_chunk or 1
        )
        return tuple(hashes[shared_count:])

    async def _shared_with_others(self, session: Session, token_ids: TokenIds) -> int:
        longest = 0
        beside = neighbours(self.registry, session.tenant, session.salt_scope, token_ids)
        async for session_id, other_ids in beside:
            if session_id != session.id:
                longest = max(longest, common_length(token_ids, other_ids))
        return longest
