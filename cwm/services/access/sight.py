"""Sight: sessions, windows and turns as a principal sees them. What it has no right on is answered like what there is not."""

from __future__ import annotations

from cwm.domain.errors import SessionNotFoundError, TurnNotFoundError, WindowNotFoundError
from cwm.domain.principal import Principal
from cwm.domain.session import Session
from cwm.domain.turn import Turn, TurnState
from cwm.domain.visibility import Right, may
from cwm.domain.window import Window
from cwm.ports.registry import Registry


async def session_of(
    registry: Registry, principal: Principal, session_id: str, right: Right, *, any_state: bool = False
) -> Session:
    """The session; a deleted one only in ``any_state``. CWM-2001."""
    session = await registry.session(principal.tenant, session_id, any_state=any_state)
    if session is None or not may(principal, session.circle, right):
        raise SessionNotFoundError(f"There is no session '{session_id}'.", session_id=session_id)
    return session


async def window_of(registry: Registry, principal: Principal, name: str, right: Right) -> Window:
    """CWM-2002."""
    window = await registry.window(principal.tenant, name)
    if window is None or not may(principal, window.circle, right):
        raise WindowNotFoundError(f"There is no window '{name}'.", window_name=name)
    return window


async def turn_of(
    registry: Registry, principal: Principal, turn_id: str, right: Right
) -> tuple[Turn, Session]:
    """An ended turn and its session, in any state. CWM-2007."""
    turn = await registry.turn(principal.tenant, turn_id)
    session = turn and await registry.session(principal.tenant, turn.session_id, any_state=True)
    if (
        not turn
        or turn.state is not TurnState.ENDED
        or not session
        or not may(principal, session.circle, right)
    ):
        raise TurnNotFoundError(f"There is no recorded turn '{turn_id}'.", turn=turn_id)
    return turn, session
