"""Continuation: a request that has only what is new goes on from a session, a window or a turn, token for token."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from cwm.domain.access import AccessScope
from cwm.domain.errors import InvalidParameterError, SessionNotActiveError
from cwm.domain.principal import Principal
from cwm.domain.session import Session
from cwm.domain.turn import Turn, TurnSource
from cwm.domain.visibility import Right
from cwm.ports.registry import Registry
from cwm.services.access.sight import session_of, turn_of

HEADER: Final = "CWM-Continue"
_NEEDED: Final = frozenset({AccessScope.WINDOWS_READ})


@dataclass(frozen=True, slots=True)
class Continued:
    """The session that a request goes on in, and the recorded turn that it goes on from."""

    session: Session
    turn: Turn


@dataclass(frozen=True, slots=True)
class Continuation:
    """``thaw`` opens a session (with this id, or a new one, and this visibility, or the default) at a window, and returns it."""

    registry: Registry
    thaw: Callable[[Principal, str, str | None, str | None], Awaitable[Session]]

    async def source(
        self, principal: Principal, target: str, session_id: str | None, visibility: str | None
    ) -> Continued:
        """What ``target`` names: ``session:ID``, ``window:NAME`` (which is thawed) or ``turn:ID``.

        CWM-1001/1002/1003, 2001, 2002, 2007, 3001, 3002, and those of a thaw.
        """
        source = TurnSource.parse(target, HEADER)
        if source.window_name is not None:
            principal.require(_NEEDED)
            return await self._current(await self.thaw(principal, source.window_name, session_id, visibility))
        if source.turn_id is not None:
            turn, session = await turn_of(self.registry, principal, source.turn_id, Right.USE)
            self._require_same(turn.session_id, session_id)
            return Continued(session, turn)
        continued = source.session_id or ""
        self._require_same(continued, session_id)
        return await self._current(await session_of(self.registry, principal, continued, Right.USE))

    async def _current(self, session: Session) -> Continued:
        current = await self.registry.current_turn(session.tenant, session.id)
        if current is None:
            raise SessionNotActiveError(
                f"Session '{session.id}' has no turn yet: send the whole conversation.",
                session_id=session.id,
                token_count=0,
            )
        return Continued(session, current)

    def _require_same(self, continued: str, session_id: str | None) -> None:
        if session_id not in {None, continued}:
            raise InvalidParameterError(
                f"CWM-Session-Id and {HEADER} name two sessions; leave one out.",
                field=HEADER,
                session_id=continued,
            )
