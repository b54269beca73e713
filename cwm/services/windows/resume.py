"""Resume: a session goes on from a window under its own id, so that its client needs nothing new."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

from cwm.domain.errors import InvalidParameterError, SessionNotActiveError, SessionNotFoundError
from cwm.domain.names import require_session_id
from cwm.domain.principal import Principal
from cwm.domain.session import LIVE, Session
from cwm.domain.turn import Turn, TurnState
from cwm.domain.visibility import Right
from cwm.ports.registry import Registry
from cwm.services.access.sight import session_of
from cwm.services.audit.journal import Journal, of_another
from cwm.services.turns.recording.placement import Said
from cwm.services.turns.recording.turns import Answered, Turns
from cwm.services.windows.thaw import Thaw, Thawed


@dataclass(frozen=True, slots=True)
class Resume:
    registry: Registry
    thaw: Thaw
    turns: Turns
    journal: Journal

    async def __call__(
        self,
        principal: Principal,
        window_name: str,
        session_id: str,
        *,
        accept_template: bool = False,
        verify: bool = True,
    ) -> Thawed:
        """Thaw a window, and make its context the current one of the session, which is opened if there is none.

        All turns of the session stay. A frozen or expired session becomes active. Errors are those of a thaw; CWM-3001 if
        the id is somebody else's, CWM-1003 if the session has another model.
        """
        session = await self._session(principal, require_session_id(session_id))
        thawed = await self.thaw(
            principal,
            window_name,
            session_id if session is None else None,
            accept_template=accept_template,
            verify=verify,
        )
        if session is None:
            return thawed
        try:
            moved = await self._move(principal, session, thawed)
        finally:
            await self.thaw.end_session.now(thawed.session)
        return replace(thawed, session=moved)

    async def _session(self, principal: Principal, session_id: str) -> Session | None:
        with suppress(SessionNotFoundError):
            return await session_of(self.registry, principal, session_id, Right.USE)
        return None

    async def _move(self, principal: Principal, session: Session, thawed: Thawed) -> Session:
        if session.model != thawed.window.model:
            raise InvalidParameterError(
                f"Session '{session.id}' was begun with the model '{session.model}' and keeps it; the window is of "
                f"'{thawed.window.model}'.",
                field="as_session",
                session_id=session.id,
                model=session.model,
            )
        async with self.journal.entry(principal, "turn_revert", session_id=session.id) as details:
            details.update(of_another(principal, session.owner), session=session.id)
            now = self.journal.clock.now()
            if session.state not in LIVE:
                session = await self.registry.unfreeze(session, now) or session
            turn = await self._turn_of(session, thawed.window.turn_id) or await self._copy(
                principal, session, thawed.session
            )
            details.update(turn=turn.id)
            moved = await self.registry.revert(turn, now)
            if moved is None:
                raise SessionNotActiveError(
                    f"Session '{session.id}' is no longer active.", session_id=session.id
                )
            return moved

    async def _turn_of(self, session: Session, turn_id: str | None) -> Turn | None:
        """The window's turn, if it is one of the session."""
        turn = None if turn_id is None else await self.registry.turn(session.tenant, turn_id)
        own = turn is not None and turn.session_id == session.id and turn.state is TurnState.ENDED
        return turn if own else None

    async def _copy(self, principal: Principal, session: Session, source: Session) -> Turn:
        """A turn of the session with the context and the messages that ``source`` begins with."""
        origin = await self.registry.current_turn(source.tenant, source.id)
        assert origin is not None
        token_ids = await self.registry.turn_tokens(origin)
        messages = await self.registry.turn_messages(origin, whole=True)
        with self.turns.begin(principal, session.id) as running:
            await running.ask(session, Said(messages, origin.profile, apart=True))
            await running.record(Answered(token_ids, len(token_ids)))
            turn = await self.registry.turn(session.tenant, running.id or "")
        if turn is None:
            raise SessionNotActiveError(f"Session '{session.id}' is no longer active.", session_id=session.id)
        return turn
