"""The destination of a request whose client, or whose API, names the conversation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cwm.domain.conversation import ClientConversation
from cwm.domain.principal import Principal
from cwm.domain.session import BY_CLIENT, FOUND_BY, PARENT
from cwm.domain.turn import Joined, Message
from cwm.ports.registry import Registry
from cwm.services.turns.finding.destination import Destination, NewSession
from cwm.services.turns.finding.match_conversation import BY_NAME, MatchConversation, keys_of
from cwm.services.turns.finding.named_session import named_session


@dataclass(frozen=True, slots=True)
class ByName:
    registry: Registry
    match: MatchConversation

    async def __call__(
        self, principal: Principal, conversation: ClientConversation, model: str, messages: Sequence[Message]
    ) -> Destination:
        """The session that the client names. A new one whose messages have an answer of another conversation is a fork of that."""
        own = await named_session(self.registry, principal, conversation.session_id, model)
        keys = await keys_of(messages, BY_NAME) if messages else None
        metadata, origin = {FOUND_BY: BY_CLIENT}, None
        if conversation.parent_session_id is not None:
            parent = await named_session(self.registry, principal, conversation.parent_session_id, model)
            metadata[PARENT] = parent.id
        elif own.session is None and keys is not None and keys.answers:
            turn = await self.match.origin(principal, keys, model)
            origin = None if turn is None else turn.id
        return Destination(
            own.id,
            Joined.CLIENT,
            session=own.session,
            is_new=own.session is None,
            new_session=NewSession(metadata, origin),
            keys=keys,
            hints=(BY_NAME,),
        )

    async def following(
        self, principal: Principal, session_id: str, model: str, messages: Sequence[Message]
    ) -> Destination | None:
        """The session of the response or conversation that the request goes on from; None where that is gone, or another model's."""
        session = await self.registry.session(principal.tenant, session_id)
        if session is None or session.model != model:
            return None
        return Destination(session.id, Joined.CLIENT, session=session, keys=await keys_of(messages))
