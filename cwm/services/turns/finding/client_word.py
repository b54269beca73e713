"""What a client says of its request: that it is no part of the conversation, and how often it summarised that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cwm.domain.clients.known import asks_aside
from cwm.domain.conversation import is_for
from cwm.domain.errors import InvalidParameterError
from cwm.domain.turn import Message
from cwm.services.turns.finding.destination import Destination
from cwm.services.turns.finding.request import ClientRequest


def as_its_client_says(destination: Destination, incoming: ClientRequest) -> Destination:
    """The destination with the client's word. CWM-1003 for a header that says nothing."""
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
