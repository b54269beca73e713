"""The conversation that a tool call comes from: only what the client says, and the answer that made the call, are evidence."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cwm.domain.conversation import is_for
from cwm.domain.errors import InvalidSessionIdError
from cwm.domain.principal import Principal
from cwm.domain.turn import Turn
from cwm.ports.clock import Clock
from cwm.ports.registry import Registry
from cwm.services.turns.finding.tool_caller import ToolCaller, has_made
from cwm.services.turns.finding.used_lately import used_lately

_NAMED: Final = 10
_LOOK_AGAIN_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True)
class CallingConversation:
    """``keeps_messages``: whether a tenant's messages are kept. ``patience_seconds``: how long an answer in flight is waited for: clients call a tool before the answer that asked for it has ended."""

    registry: Registry
    clock: Clock
    keeps_messages: Callable[[str], bool] = lambda _: True
    patience_seconds: float = 5.0

    async def __call__(self, principal: Principal, caller: ToolCaller) -> str:
        """The id of the session. CWM-1001 where nothing says which it is, or the same call is pending in several."""
        sessions = await used_lately(self.registry, principal, self.clock.now())
        if caller.conversation is not None:
            wanted_id = caller.conversation.session_id
            own_id = next((session.id for session in sessions if is_for(session.id, wanted_id)), None)
            if own_id is not None:
                return own_id
        if not self.keeps_messages(principal.tenant):
            raise _unknown("messages are not kept here, so the call cannot be found in an answer")
        deadline = asyncio.get_running_loop().time() + self.patience_seconds
        other_turns: set[str] = set()
        # An answer that streams now may make the same call as one that was never gone on from.
        unfinished = {turn.id for turn in await self._in_flight(principal)}
        while True:
            in_flight = await self._in_flight(principal)
            pending = await self._pending(principal, caller, in_flight, other_turns)
            is_sure = caller.call_id is not None and len(pending) == 1
            unfinished &= {turn.id for turn in in_flight}
            if is_sure or not unfinished or asyncio.get_running_loop().time() >= deadline:
                break
            # Nothing tells that an answer of another gateway ended.
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)
        if len(pending) == 1:
            return pending[0]
        if pending:
            raise _unknown("the same call is pending in several of your conversations", pending)
        raise _unknown("no recorded answer of the last hour ends with this call")

    async def _in_flight(self, principal: Principal) -> Sequence[Turn]:
        return await self.registry.turns_in_flight(principal.tenant, principal.subject)

    async def _pending(
        self, principal: Principal, caller: ToolCaller, in_flight: Sequence[Turn], other_turns: set[str]
    ) -> list[str]:
        """The sessions whose last answer made the call, without a turn ``in_flight``. ``other_turns`` gets the turns that made other calls."""
        awaited = {turn.session_id for turn in in_flight}
        session_ids = [
            session.id for session in await used_lately(self.registry, principal, self.clock.now())
        ]
        current = await self.registry.current_turns(principal.tenant, session_ids)
        pending = []
        for session_id, turn in current.items():
            if turn.id in other_turns:
                continue
            if not await has_made(self.registry, turn, caller):
                other_turns.add(turn.id)
            elif session_id not in awaited:
                pending.append(session_id)
        return pending


def _unknown(reason: str, session_ids: Sequence[str] = ()) -> InvalidSessionIdError:
    context: dict[str, Any] = {"sessions": list(session_ids[:_NAMED])} if session_ids else {}
    return InvalidSessionIdError(
        f"Give session_id: {reason}. The header CWM-Session-Id of the model's answers and session_list name your sessions.",
        field="session_id",
        **context,
    )
