"""Branches: a new session at any turn, an earlier turn made current, a branch removed, sessions merged or continued, tags."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from uuid import uuid4

from cwm.domain.errors import (
    InvalidParameterError,
    SessionNotActiveError,
    TurnNotFoundError,
    TurnTagExistsError,
)
from cwm.domain.names import require_session_id, require_turn_tag
from cwm.domain.principal import TENANT, Principal
from cwm.domain.session import BRANCHED_FROM, Session, SessionState
from cwm.domain.turn import TAG, TurnTag
from cwm.domain.visibility import Right, circle_of_new
from cwm.ports.clock import Clock
from cwm.ports.registry import Registry
from cwm.services.access.sight import session_of, turn_of
from cwm.services.access.storage import Storage
from cwm.services.audit.journal import Journal, of_another
from cwm.services.turns.recording.grow import TEMPLATE

_ALIKE: Final = ("owner", "circle", "model", "salt_scope")


@dataclass(frozen=True, slots=True)
class Branches:
    """None of these asks the engine anything. Going back does not undo what tools did."""

    registry: Registry
    journal: Journal
    clock: Clock
    visibility: str = TENANT
    storage: Storage | None = None

    async def open(
        self,
        principal: Principal,
        turn_id: str,
        session_id: str | None = None,
        visibility: str | None = None,
    ) -> Session:
        """A new session whose context is the turn's; KV that the engine still has is reused.

        It is by default not more visible than the turn's. CWM-1001, 1003, 2007, 3001, 4003.
        """
        branch_id = require_session_id(session_id or f"branch_{uuid4().hex[:12]}")
        async with self.journal.entry(principal, "turn_branch", session_id=branch_id) as details:
            turn, origin = await turn_of(self.registry, principal, turn_id, Right.CONTENTS)
            details.update(of_another(principal, origin.owner), turn=turn.id, token_count=turn.total_tokens)
            if self.storage is not None:
                await self.storage.require_room(principal.tenant, principal.subject)
            now = self.clock.now()
            branch = Session(
                tenant=principal.tenant,
                id=branch_id,
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
                circle=circle_of_new(principal, visibility, self.visibility, origin),
            )
            token_ids = await self.registry.turn_tokens(turn)
            return await self.registry.add_session(branch, token_ids, source_turn=turn.id)

    async def revert(self, principal: Principal, turn_id: str) -> Session:
        """Make the turn the current one of its session. The turns after it stay in the tree. CWM-2007, 3002."""
        async with self.journal.entry(principal, "turn_revert") as details:
            turn, origin = await turn_of(self.registry, principal, turn_id, Right.USE)
            details.update(of_another(principal, origin.owner), turn=turn.id, session=origin.id)
            session = await self.registry.revert(turn, self.clock.now())
            if session is None:
                raise _not(origin, "active; a frozen one goes on with session_unfreeze")
            return session

    async def remove(self, principal: Principal, turn_id: str) -> int:
        """Delete the turn and all that came from it, and return how many turns that were. CWM-2007, 3004."""
        async with self.journal.entry(principal, "turn_delete") as details:
            turn, origin = await turn_of(self.registry, principal, turn_id, Right.USE)
            details.update(of_another(principal, origin.owner), turn=turn.id, session=origin.id)
            count = await self.registry.remove_branch(turn)
            details.update(turns=count)
            return count

    async def tag(self, principal: Principal, name: str, turn_id: str, *, move: bool = False) -> TurnTag:
        """Name the turn. CWM-1003, 2007; CWM-3009 if the tag names another turn, unless ``move``."""
        require_turn_tag(name)
        async with self.journal.entry(principal, "turn_tag") as details:
            turn, origin = await turn_of(self.registry, principal, turn_id, Right.USE)
            details.update(of_another(principal, origin.owner), tag=name, turn=turn.id, session=origin.id)
            # A tag that the principal may not move is answered like one that it did not mean to move.
            move = move and await self._may_move(principal, name)
            new_tag = TurnTag(
                turn.tenant, name, turn.session_id, turn.id, principal.subject, self.clock.now()
            )
            tag = await self.registry.tag(new_tag, move=move)
            if tag is None:
                raise _unrecorded(turn_id)
            if tag.turn_id != turn.id:
                raise TurnTagExistsError(f"Tag '{name}' names another turn.", tag=name)
            return tag

    async def untag(self, principal: Principal, name: str) -> TurnTag:
        """Remove the tag; its turn stays as long as its session. CWM-1003, 2007."""
        require_turn_tag(name)
        async with self.journal.entry(principal, "turn_tag") as details:
            _, origin = await turn_of(self.registry, principal, f"{TAG}{name}", Right.USE)
            details.update(of_another(principal, origin.owner), tag=name, session=origin.id, deleted=True)
            tag = await self.registry.untag(principal.tenant, name)
            if tag is None:
                raise _unrecorded(f"{TAG}{name}")
            return tag

    async def _may_move(self, principal: Principal, name: str) -> bool:
        if await self.registry.turn(principal.tenant, f"{TAG}{name}") is None:
            return True
        try:
            await turn_of(self.registry, principal, f"{TAG}{name}", Right.USE)
        except TurnNotFoundError:
            return False
        return True

    async def merge(self, principal: Principal, session_id: str, into: str) -> tuple[Session, int]:
        """Make the turns of one session branches of another, and end the first. Returns the other, and how many turns it has.

        CWM-1001, 1003, 2001, 3002, 4002.
        """
        for each in (session_id, into):
            require_session_id(each)
        async with self.journal.entry(principal, "session_merge", session_id=into) as details:
            source = await session_of(self.registry, principal, session_id, Right.DELETE)
            target = await session_of(self.registry, principal, into, Right.USE)
            details.update(of_another(principal, source.owner), merged=source.id)
            differing = [name for name in _ALIKE if getattr(source, name) != getattr(target, name)]
            if source.own_metadata.get(TEMPLATE) != target.own_metadata.get(TEMPLATE):
                differing.append("template")
            if source.id == target.id or differing:
                raise InvalidParameterError(
                    f"Session '{source.id}' can be merged into one that has the same owner, visibility, model, cache "
                    "salt and template options, and is not itself.",
                    field="into_session",
                    differing=differing,
                )
            target.require_live("a merge")
            session = await self.registry.merge_sessions(source, target, self.clock.now())
            if session is None:
                raise SessionNotActiveError(
                    f"Session '{source.id}' or '{target.id}' changed; look at both and merge again.",
                    session_id=into,
                )
            count = (await self.registry.tree_size(session.tenant, session.id)).turns
            details.update(turns=count)
            return session, count

    async def unfreeze(self, principal: Principal, session_id: str) -> Session:
        """Let a frozen or expired session take turns again; its windows stay as they are. CWM-1001, 2001, 3002."""
        require_session_id(session_id)
        async with self.journal.entry(principal, "session_unfreeze", session_id=session_id) as details:
            frozen = await session_of(self.registry, principal, session_id, Right.USE)
            details.update(of_another(principal, frozen.owner))
            session = await self.registry.unfreeze(frozen, self.clock.now())
            if session is None:
                raise _not(frozen, "frozen or expired")
            return session


def _unrecorded(turn_id: str) -> TurnNotFoundError:
    return TurnNotFoundError(f"There is no recorded turn '{turn_id}'.", turn=turn_id)


def _not(session: Session, state: str) -> SessionNotActiveError:
    return SessionNotActiveError(
        f"Session '{session.id}' is {session.state}, not {state}.",
        session_id=session.id,
        state=str(session.state),
    )
