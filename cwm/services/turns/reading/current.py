"""Current: the turn that a session's context ends with, once nothing in flight is about to move it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from cwm.domain.errors import InvalidParameterError, TurnInFlightError, TurnNotFoundError
from cwm.domain.main_line import may_become_current, rival
from cwm.domain.session import Session
from cwm.domain.turn import Turn, TurnQuery, TurnState
from cwm.ports.turns import TurnRecords
from cwm.services.replicas import Replicas

_RECENT: Final = TurnQuery(limit=1000)
_LOOK_AGAIN_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True)
class Current:
    """``patience_seconds``: how long to wait for a turn in flight that may continue the current one, on any gateway."""

    records: TurnRecords
    replicas: Replicas
    patience_seconds: float = 30.0

    async def __call__(self, session: Session, *, ask: bool = True) -> Turn | None:
        """The last turn of the main line; None before the first.

        CWM-3002 (retryable) while a turn that may continue it is in flight for longer than the patience. CWM-1003
        where two conversations share the session and there is somebody to ``ask``: it names both turns.
        """
        current, turns = await self._settled(session)
        if ask and current is not None and (other := rival(turns, current)) is not None:
            raise InvalidParameterError(
                f"Session '{session.id}' holds two conversations: turn '{current.id}' and turn '{other.id}' are "
                "the last of each. Say which with turn.",
                field="turn",
                session_id=session.id,
                turns=[current.id, other.id],
            )
        return current

    async def unmoved(self, session: Session) -> Turn | None:
        """The last turn of the main line now; None before the first, and while one in flight may follow it."""
        current, _, moving = await self._look(session)
        return None if moving else current

    async def ended(self, session: Session, turn_id: str) -> Turn:
        """A recorded turn of the session. CWM-2007."""
        turn = await self.records.turn(session.tenant, turn_id)
        if turn is None or turn.session_id != session.id or turn.state is not TurnState.ENDED:
            raise TurnNotFoundError(
                f"Session '{session.id}' has no recorded turn '{turn_id}'.",
                session_id=session.id,
                turn=turn_id,
            )
        return turn

    async def _settled(self, session: Session) -> tuple[Turn | None, list[Turn]]:
        deadline = asyncio.get_running_loop().time() + self.patience_seconds
        while True:
            current, turns, moving = await self._look(session)
            if not moving:
                return current, turns
            if asyncio.get_running_loop().time() >= deadline:
                raise TurnInFlightError(
                    f"Session '{session.id}' has a turn in flight; ask again when the turn has ended.",
                    session_id=session.id,
                    in_flight=True,
                )
            # Nothing tells that a turn of another gateway ended.
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)

    async def _look(self, session: Session) -> tuple[Turn | None, list[Turn], bool]:
        """The current turn, the newest turns, and whether one in flight may become current."""
        # In this order: a turn that ends between the two reads is the current one.
        turns = await self.records.turns(session.tenant, session.id, _RECENT)
        current = await self.records.current_turn(session.tenant, session.id)
        for turn in turns:
            awaited = turn.state is TurnState.ASKED and may_become_current(turn, current)
            if awaited and not await self.replicas.gone(turn.holder):
                return current, turns, True
        return current, turns, False
