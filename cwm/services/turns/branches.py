"""Branches: a new session at any turn, an earlier turn made current, a branch removed, a frozen session continued."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import uuid4

from cwm.domain.errors import (
    SessionNotActiveError,
    SessionNotFoundError,
    TurnNotFoundError,
)
from cwm.domain.names import require_session_id
from cwm.domain.principal import Principal
from cwm.domain.session import OWN, Session, SessionState
from cwm.domain.turn import Turn, TurnState
from cwm.ports.clock import Clock
from cwm.ports.registry import Registry
from cwm.services.audit.journal import Journal, of_another

BRANCHED_FROM = f"{OWN}branched_from"


@dataclass(frozen=True, slots=True)
class Branches:
    """None of these asks the engine anything. Going back does not undo what tools did."""

    registry: Registry
    journal: Journal
    clock: Clock

    async def open(self, principal: Principal, turn_id: str, session_id: str | None = None) -> Session:
        """A new session whose context is the turn's; KV that the engine still has is reused. CWM-1001, 2007, 3001."""
        chosen = require_session_id(session_id or f"branch_{uuid4().hex[:12]}")
        async with self.journal.entry(principal, "turn_branch", session_id=chosen) as details:
            turn = await self._ended(principal, turn_id)
            origin = await self._session(turn, any_state=True)
            details.update(of_another(principal, origin.owner), turn=turn.id, token_count=turn.total_tokens)
            now = self.clock.now()
            branch = Session(
                tenant=principal.tenant,
                id=chosen,
                owner=principal.subject,
                model=origin.model,
                state=SessionState.ACTIVE,
                salt_scope=origin.salt_scope,
                token_count=turn.total_tokens,
                revision=0,
                created_at=now,
                updated_at=now,
                branch_token=turn.total_tokens,
                metadata={**origin.own_metadata, BRANCHED_FROM: turn.id},
            )
            token_ids = await self.registry.turn_tokens(turn)
            return await self.registry.add_session(branch, token_ids, source_turn=turn.id)

    async def revert(self, principal: Principal, turn_id: str) -> Session:
        """Make the turn the current one of its session. The turns after it stay in the tree. CWM-2007, 3002."""
        async with self.journal.entry(principal, "turn_revert") as details:
            turn = await self._ended(principal, turn_id)
            origin = await self._session(turn)
            details.update(of_another(principal, origin.owner), turn=turn.id, session=origin.id)
            session = await self.registry.revert(turn, self.clock.now())
            if session is None:
                raise _not(origin, "active; a frozen one goes on with session_unfreeze")
            return session

    async def remove(self, principal: Principal, turn_id: str) -> int:
        """Delete the turn and all that came from it, and return how many turns that were. CWM-2007, 3004."""
        async with self.journal.entry(principal, "turn_delete") as details:
            turn = await self._ended(principal, turn_id)
            origin = await self._session(turn, any_state=True)
            details.update(of_another(principal, origin.owner), turn=turn.id, session=origin.id)
            count = await self.registry.remove_branch(turn)
            details.update(turns=count)
            return count

    async def unfreeze(self, principal: Principal, session_id: str) -> Session:
        """Let a frozen or expired session take turns again; its windows stay as they are. CWM-1001, 2001, 3002."""
        require_session_id(session_id)
        async with self.journal.entry(principal, "session_unfreeze", session_id=session_id) as details:
            frozen = await self.registry.session(principal.tenant, session_id)
            if frozen is None:
                raise SessionNotFoundError(f"There is no session '{session_id}'.", session_id=session_id)
            details.update(of_another(principal, frozen.owner))
            session = await self.registry.unfreeze(frozen, self.clock.now())
            if session is None:
                raise _not(frozen, "frozen or expired")
            return session

    async def _ended(self, principal: Principal, turn_id: str) -> Turn:
        turn = await self.registry.turn(principal.tenant, turn_id)
        if turn is None or turn.state is not TurnState.ENDED:
            raise TurnNotFoundError(f"There is no recorded turn '{turn_id}'.", turn=turn_id)
        return turn

    async def _session(self, turn: Turn, *, any_state: bool = False) -> Session:
        session = await self.registry.session(turn.tenant, turn.session_id, any_state=any_state)
        if session is None:
            raise SessionNotFoundError(
                f"There is no session '{turn.session_id}'.", session_id=turn.session_id
            )
        return session


def _not(session: Session, state: str) -> SessionNotActiveError:
    return SessionNotActiveError(
        f"Session '{session.id}' is {session.state}, not {state}.",
        session_id=session.id,
        state=str(session.state),
    )
