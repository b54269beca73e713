"""What a request says in its session, and where that leaves what was said before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cwm.domain.conversation import chained
from cwm.domain.divergence import divergence
from cwm.domain.errors import UnrelatedTurnError
from cwm.domain.session import Session, SessionState
from cwm.domain.turn import Message, Profile, Turn
from cwm.ports.registry import Registry
from cwm.services.turns.asking.habits import Habits
from cwm.services.turns.finding.destination import Destination
from cwm.services.turns.recording.placement import Said
from cwm.services.turns.recording.turns import RunningTurn


@dataclass(frozen=True, slots=True)
class Statements:
    registry: Registry
    habits: Habits

    async def of(
        self, destination: Destination, session: Session, profile: Profile, turn: RunningTurn
    ) -> Said:
        """The statement of a request with this profile.

        CWM-3008 for the first request to a thawed session that has none of the window's messages: it would not see the window. If
        its client did not choose the session, it is a side branch instead, as a title is.
        """
        if (source := destination.source) is not None:
            return Said(
                destination.messages,
                source.profile,
                whole=False,
                apart=destination.is_apart,
                chain=_chain_after(source, destination.messages),
                compactions=None,
                joined=destination.joined,
            )
        statement = await self._whole(destination, session, profile, turn)
        if session.state is not SessionState.THAWED or destination.is_apart or not _is_unrelated(statement):
            return statement
        if destination.is_captured:
            return replace(statement, apart=True)
        raise UnrelatedTurnError(
            f"Session '{session.id}' was thawed from window '{session.thawed_from}', and the request has none of "
            "its messages: the model would not see the window. Send the whole conversation; or only what is "
            f"new, with the header 'CWM-Continue: session:{session.id}'; or 'CWM-Branch: new' to ask apart from it.",
            session_id=session.id,
            window_name=session.thawed_from,
        )

    async def _whole(
        self, destination: Destination, session: Session, profile: Profile, turn: RunningTurn
    ) -> Said:
        keys, messages = destination.keys, destination.messages
        statement = Said(
            messages,
            profile,
            apart=destination.is_apart,
            chain=None if keys is None else keys.chain,
            core_chain=None if keys is None else keys.core_chain,
            hints=destination.hints,
            compactions=destination.compactions,
            joined=destination.joined,
        )
        current = await self.registry.current_turn(session.tenant, session.id)
        if current is None:
            return statement
        line = await turn.line(current)
        diverged = divergence(messages, profile, line, current.profile) if line else None
        if diverged is not None:
            diverged = await self.habits.named(session, messages, diverged)
        return replace(statement, current=current.id, line=line, diverged=diverged)


def _is_unrelated(statement: Said) -> bool:
    """Whether a chat has no answer of an assistant and none of the messages of the line."""
    if statement.current is None:
        return False
    chat = [message for message in statement.messages if message.content.get("role") != "prompt"]
    return (
        bool(chat) and not statement.answers and not any(message.digest in statement.line for message in chat)
    )


def _chain_after(source: Turn, messages: Sequence[Message]) -> str | None:
    chain = None if source.abandoned else source.chain
    return None if chain is None else chained(chain, *(message.digest for message in messages))
