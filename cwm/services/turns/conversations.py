"""Conversations: finds the session of a request whose client names none of CWM's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final
from uuid import uuid4

from cwm.domain.conversation import (
    Capture,
    CapturePolicies,
    ClientConversation,
    chains,
    is_for,
    session_id_beside,
)
from cwm.domain.errors import InvalidParameterError, SessionNotFoundError
from cwm.domain.principal import Principal
from cwm.domain.session import BY_CONTENT, FOUND_BY, LIVE, Session, SessionQuery, SessionState
from cwm.domain.turn import Message, Turn
from cwm.domain.visibility import Right, may
from cwm.ports.clock import Clock
from cwm.ports.registry import Registry
from cwm.services.aside import aside_of

PARENT: Final = "parent_session"

_BY_NAME: Final = "named"
"""The hint of chains in conversations that their clients name: others are not joined to them by what they say."""
_ANSWERS: Final = 8
_OTHER_IDS: Final = 8
_LATELY: Final = timedelta(hours=1)
_LISTED: Final = 200
_LOOKED_AT: Final = 16
_NAMED: Final = 10


async def chains_of(messages: Sequence[Message], *hints: str) -> list[str]:
    """:func:`chains`, in a thread if there is much to read."""
    contents = [message.content for message in messages]
    return await aside_of(contents, lambda: chains(messages, *hints))


@dataclass(frozen=True, slots=True)
class Captured:
    """The session that a request belongs to, which may not exist yet, and the metadata that it gets then.

    ``chain`` digests what the request says; ``origin`` is the turn of another session that a new one goes on from.
    """

    session_id: str
    metadata: dict[str, str]
    chain: str | None = None
    origin: str | None = None


@dataclass(slots=True)
class Conversations:
    """Principals never share a session that was found, whatever their clients call it or say in it."""

    registry: Registry
    clock: Clock
    policies: CapturePolicies = field(default_factory=CapturePolicies)
    single_user: bool = False

    async def named(
        self,
        principal: Principal,
        conversation: ClientConversation,
        model: str,
        messages: Sequence[Message] = (),
    ) -> Captured:
        """The session that the client names. A new one whose messages have an answer of another conversation is a fork of that."""
        metadata = {FOUND_BY: "client"}
        session_id, is_new = await self._own(principal, conversation.session_id, model)
        values, origin = await chains_of(messages, _BY_NAME), None
        if conversation.parent_session_id is not None:
            metadata[PARENT], _ = await self._own(principal, conversation.parent_session_id, model)
        elif is_new and (answer_chains := _at_answers(values, messages)):
            turn = await self.registry.turn_with_chain(principal.tenant, principal.subject, answer_chains)
            if turn is not None and await self._goes_on(principal, turn, model):
                origin = turn.id
        return Captured(session_id, metadata, values[-1] if values else None, origin)

    async def by_content(
        self,
        principal: Principal,
        messages: Sequence[Message],
        model: str,
        *,
        again: bool,
        fixed: str | None = None,
        cache_key: str | None = None,
    ) -> Captured | None:
        """The session with a turn that ended with one of the last answers in the messages; else a new one.

        Equal beginnings are conversations of their own, except where the client did not wait for the answer, or says that it
        sends the request ``again``. Only what has the same hints is looked at: the ``fixed`` id, which a new session's begins with, and
        the ``cache_key``.
        None where nothing is said.
        """
        if not messages:
            return None
        hints = [hint for hint in (fixed, cache_key) if hint is not None]
        values = await chains_of(messages, *hints)
        answer_chains = _at_answers(values, messages)
        turn = await self.registry.turn_with_chain(
            principal.tenant, principal.subject, answer_chains or values[-1:]
        )
        if turn is not None and (answer_chains or turn.abandoned or again):
            session = await self._goes_on(principal, turn, model)
            if session is not None:
                return Captured(session.id, {}, values[-1])
        number = uuid4().hex
        session_id = (
            f"conversation_{number[:12]}"
            if fixed is None
            else session_id_beside(ClientConversation(fixed).session_id, number)
        )
        return Captured(session_id, {FOUND_BY: BY_CONTENT}, values[-1])

    async def current(
        self, principal: Principal, conversation: ClientConversation | None, call_id: str | None
    ) -> str:
        """The id of the session of the conversation that the principal's agent is in.

        By the client's id of the ``conversation``; else by the tool call with which its model answered; else the only one
        that the principal used within an hour; those of sub-agents count only if one of them was used last. CWM-1003 names
        several, CWM-2001 if there is none.
        """
        sessions = await self._used_last(principal)
        if conversation is not None:
            session_ids = [each.id for each in sessions if is_for(each.id, conversation.session_id)]
            if session_ids:
                return session_ids[0]
        for session in sessions[:_LOOKED_AT] if call_id is not None else ():
            turn = await self.registry.current_turn(principal.tenant, session.id)
            messages = await self.registry.turn_messages(turn, -1) if turn is not None else []
            if messages and call_id in _calls(messages[-1]):
                return session.id
        if len(sessions) > 1 and not await self._is_sub_agents(sessions[0]):
            sessions = [session for session in sessions if not await self._is_sub_agents(session)]
        if not sessions:
            raise SessionNotFoundError(
                "You have had no conversation through this gateway in the last hour: name a session_id."
            )
        if len(sessions) > 1:
            raise InvalidParameterError(
                "You have more than one conversation; say which with session_id.",
                field="session_id",
                sessions=[session.id for session in sessions[:_NAMED]],
            )
        return sessions[0].id

    async def _used_last(self, principal: Principal) -> list[Session]:
        """The principal's own live sessions of the last hour, the last used first."""
        query = SessionQuery(LIVE, limit=_LISTED, circles=principal.circles)
        since = self.clock.now() - _LATELY
        own = [
            session
            for session in await self.registry.sessions(principal.tenant, query)
            if _is_own(principal, session) and session.updated_at >= since
        ]
        return sorted(own, key=lambda session: session.updated_at, reverse=True)

    async def _is_sub_agents(self, candidate: Session) -> bool:
        session = await self.registry.session(candidate.tenant, candidate.id)
        return session is not None and PARENT in session.metadata

    def policy(self, principal: Principal) -> Capture:
        return self.policies.of(principal.tenant, single_user=self.single_user)

    async def _goes_on(self, principal: Principal, turn: Turn, model: str) -> Session | None:
        """The turn's session, if the principal's own conversations may go on from it."""
        session = await self.registry.session(principal.tenant, turn.session_id)
        return (
            session
            if session is not None and _is_own(principal, session) and session.model == model
            else None
        )

    async def _own(self, principal: Principal, session_id: str, model: str) -> tuple[str, bool]:
        """The id, or one beside it where that is a session of somebody else or not seen any more, of another model, or a deleted one's.

        And whether it is the id of no session yet.
        """
        own_id, session = session_id, None
        for number in range(_OTHER_IDS):
            session = await self.registry.session(principal.tenant, own_id, any_state=True)
            if session is None or (
                _is_own(principal, session)
                and session.model == model
                and session.state is not SessionState.DELETED
            ):
                break
            own_id = session_id_beside(session_id, principal.subject, model, str(number))
        return own_id, session is None


def _at_answers(values: Sequence[str], messages: Sequence[Message]) -> list[str]:
    """The chains at the last answers, the last one first."""
    answer_chains = [
        value
        for value, message in zip(values, messages, strict=True)
        if message.content.get("role") == "assistant"
    ]
    return answer_chains[-1 : -_ANSWERS - 1 : -1]


def _is_own(principal: Principal, session: Session) -> bool:
    return session.owner == principal.subject and may(principal, session.circle, Right.USE)


def _calls(message: Message) -> set[str]:
    """The ids of the tool calls in an answer."""
    calls = message.content.get("tool_calls")
    return (
        {str(call.get("id")) for call in calls if isinstance(call, dict)}
        if isinstance(calls, list)
        else set()
    )
