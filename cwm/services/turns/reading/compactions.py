"""Compactions: what a client's summary of a conversation left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cwm.domain.errors import TurnNotFoundError
from cwm.domain.facts import Fact, facts_in, left_out
from cwm.domain.principal import Principal
from cwm.domain.turn import Turn, TurnSource
from cwm.services.turns.reading.history import MAX_TURNS, History
from cwm.threads import in_thread


@dataclass(frozen=True, slots=True)
class LeftOut:
    """The facts of ``before``, the last turn of the whole conversation, that the request of ``turn`` does not have.

    ``tag``: a name of ``before``, if it has one.
    """

    turn: Turn
    before: Turn
    tag: str | None
    facts: Sequence[Fact]
    fact_count: int


@dataclass(frozen=True, slots=True)
class Compactions:
    history: History

    async def left_out(self, principal: Principal, of: TurnSource) -> LeftOut:
        """Of a turn that compacts, or of the newest one of a session. CWM-1001/1003, 2001, 2007."""
        turn = await self.history.turn(principal, of) if of.turn_id else await self._newest(principal, of)
        if turn is None or turn.compacts is None:
            raise TurnNotFoundError(
                "No turn of the session goes on from a summary."
                if turn is None
                else f"Turn '{turn.id}' goes on from no summary.",
                turn=of.turn_id,
            )
        after = await self.history.show(principal, TurnSource(turn_id=turn.id))
        before = await self.history.show(principal, TurnSource(turn_id=turn.compacts))
        contents = [message.content for message in before.messages]
        request = [message.content for message in after.messages[:-1]]

        def compare() -> tuple[list[Fact], int]:
            facts = facts_in(contents)
            return left_out(facts, request), len(facts)

        # A token can be one character of a text or a thousand.
        lost_facts, count = await in_thread(compare)
        tags = await self.history.registry.tags(turn.tenant, turn.session_id)
        tag = next((each.name for each in tags if each.turn_id == before.turn.id), None)
        return LeftOut(turn, before.turn, tag, lost_facts, count)

    async def _newest(self, principal: Principal, of: TurnSource) -> Turn | None:
        log = await self.history.log(principal, of, MAX_TURNS)
        return next((turn for turn in log.turns if turn.compacts is not None), None)
