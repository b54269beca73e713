"""Finds the session that a request belongs to: by its client's own word, else by the answers that it carries."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from uuid import uuid4

from cwm.domain.clients.known import asks_aside
from cwm.domain.conversation import (
    Capture,
    CapturePolicies,
    ClientConversation,
    cache_key_of,
    is_for,
    session_id_beside,
)
from cwm.domain.errors import CwmError, InvalidParameterError
from cwm.domain.names import require_session_id
from cwm.domain.principal import Principal
from cwm.domain.session import BY_CLIENT, BY_CONTENT, FOUND_BY, PARENT
from cwm.domain.turn import Joined, Message
from cwm.ports.registry import Registry
from cwm.ports.turn_wire import TurnRequest
from cwm.services.audit.journal import Journal
from cwm.services.engines.directory import EngineDirectory
from cwm.services.turns.asking.continuation import Continuation
from cwm.services.turns.asking.destination import Destination, NewSession
from cwm.services.turns.asking.match_conversation import BY_NAME, Match, MatchConversation, keys_of
from cwm.services.turns.asking.named_session import named_session
from cwm.services.turns.asking.request import ClientRequest
from cwm.threads import aside


@dataclass(slots=True)
class FindSession:
    """Principals never share a session that was found, whatever their clients call it or say in it."""

    registry: Registry
    directory: EngineDirectory
    continuation: Continuation
    match: MatchConversation
    journal: Journal
    policies: CapturePolicies = field(default_factory=CapturePolicies)
    single_user: bool = False

    async def __call__(
        self, principal: Principal, incoming: ClientRequest, request: TurnRequest, follows: str | None
    ) -> Destination:
        """``follows`` is the session of the response or conversation that the request goes on from.

        CWM-1001 for an id that no session can have, 1003, and what :meth:`Continuation.source` raises.
        """
        if incoming.continued is not None:
            return await self._continued(principal, incoming, request)
        fixed = self._fixed(incoming, request)
        if fixed is None and incoming.session_id is not None:
            return await self._by_its_id(principal, incoming, request, incoming.session_id)
        destination = await self._captured(principal, incoming, request, follows, fixed)
        if destination is None and incoming.session_id is not None:
            return await self._by_its_id(principal, incoming, request, incoming.session_id)
        return destination or Destination()

    async def _continued(
        self, principal: Principal, incoming: ClientRequest, request: TurnRequest
    ) -> Destination:
        request.require_continuable()
        source = await self.continuation.source(
            principal, incoming.continued or "", incoming.session_id, incoming.visibility
        )
        messages = await _messages(incoming, request)
        return Destination(
            source.session.id,
            Joined.CLIENT,
            session=source.session,
            source=source.turn,
            messages=messages,
            is_apart=_is_apart(incoming, messages),
        )

    async def _by_its_id(
        self, principal: Principal, incoming: ClientRequest, request: TurnRequest, session_id: str
    ) -> Destination:
        try:
            require_session_id(session_id)
        except CwmError as error:
            await self.journal.injection(principal, "pass_through", error)
            raise
        messages = await _messages(incoming, request)
        destination = Destination(session_id, Joined.CLIENT, messages=messages)
        return _as_its_client_says(destination, incoming)

    async def _captured(
        self,
        principal: Principal,
        incoming: ClientRequest,
        request: TurnRequest,
        follows: str | None,
        fixed: str | None,
    ) -> Destination | None:
        """Where a request goes whose client names no session of CWM; None where it is not recorded."""
        if not self._captures(principal, incoming, request, follows):
            return None
        identity = await self.directory.served(request.model, principal.tenant)
        if identity is None or not is_recordable(request):
            return None
        model, messages = identity.model, await _messages(incoming, request)
        conversation = None if fixed is not None else incoming.conversation
        asked = None if request.response is None else request.response.conversation
        if conversation is not None:
            found = await self._named(principal, conversation, model, messages)
        elif (followed := await self._followed(principal, follows, model, messages)) is not None:
            found = followed
        elif asked is not None:
            found = await self._named(principal, ClientConversation(asked), model, ())
        elif messages:
            hints = [hint for hint in (fixed, await self._cache_key(incoming)) if hint is not None]
            keys = await keys_of(messages, *hints)
            profile = request.profile()
            match = await self.match(principal, keys, model, profile, again=incoming.again)
            found = replace(_by_content(match, fixed), keys=keys, hints=tuple(hints))
        else:
            return None
        return _as_its_client_says(replace(found, messages=messages, is_captured=True), incoming)

    def _captures(
        self, principal: Principal, incoming: ClientRequest, request: TurnRequest, follows: str | None
    ) -> bool:
        """Whether to look for the session. A client that may read its response again names its conversation by that."""
        policy = self.policies.of(principal.tenant, single_user=self.single_user)
        ask = request.response
        if policy is Capture.OFF or not incoming.captured:
            return False
        if ask is not None and not ask.stored and self.policies.unstored is Capture.OFF:
            return False
        names = (incoming.session_id, incoming.conversation, follows)
        is_named = any(names) or (ask is not None and (ask.stored or ask.conversation is not None))
        return bool(is_named) or (policy is Capture.ALL and request.operation == "chat")

    def _fixed(self, incoming: ClientRequest, request: TurnRequest) -> str | None:
        if request.operation != "chat":
            return None
        return self.policies.fixed(incoming.session_id, incoming.conversation)

    async def _cache_key(self, incoming: ClientRequest) -> str | None:
        if not self.policies.by_cache_key:
            return None
        return await aside(len(incoming.body), partial(cache_key_of, incoming.body))

    async def _named(
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

    async def _followed(
        self, principal: Principal, follows: str | None, model: str, messages: Sequence[Message]
    ) -> Destination | None:
        """The session of the response or conversation that the request goes on from."""
        if follows is None:
            return None
        session = await self.registry.session(principal.tenant, follows)
        if session is None or session.model != model:
            return None
        return Destination(session.id, Joined.CLIENT, session=session, keys=await keys_of(messages))


def _by_content(match: Match | None, fixed: str | None) -> Destination:
    """The session of the match; a new one without a match, and for another agent that carries its answers. Its id begins with the ``fixed`` one."""
    if match is not None and not match.is_another_agent:
        return Destination(match.session.id, match.joined, session=match.session, number=match.number)
    number = uuid4().hex
    session_id = (
        f"conversation_{number[:12]}"
        if fixed is None
        else session_id_beside(ClientConversation(fixed).session_id, number)
    )
    metadata = {FOUND_BY: BY_CONTENT}
    if match is not None:
        metadata[PARENT] = match.session.id
    return Destination(session_id, is_new=True, new_session=NewSession(metadata))


def _as_its_client_says(destination: Destination, incoming: ClientRequest) -> Destination:
    conversation, compactions = incoming.conversation, None
    if conversation is not None and is_for(destination.session_id or "", conversation.session_id):
        compactions = conversation.compactions
    is_apart = _is_apart(incoming, destination.messages)
    return replace(destination, is_apart=is_apart, compactions=compactions)


def _is_apart(incoming: ClientRequest, messages: Sequence[Message]) -> bool:
    if incoming.branch not in {None, "new"}:
        raise InvalidParameterError("The header CWM-Branch has one value: new.", field="CWM-Branch")
    conversation = incoming.conversation
    is_aside = conversation is not None and (conversation.aside or asks_aside(messages))
    return incoming.branch == "new" or is_aside


def is_recordable(request: TurnRequest) -> bool:
    with suppress(InvalidParameterError):
        request.require_recordable()
        return True
    return False


async def _messages(incoming: ClientRequest, request: TurnRequest) -> Sequence[Message]:
    return await aside(len(incoming.body), request.messages)
