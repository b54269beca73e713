"""What clients call their conversations: by headers of their own, by those that ``cwm.yaml`` names, and by common ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from cwm.domain.clients.known import CLIENTS
from cwm.domain.conversation import ClientConversation

_OF_CLIENTS: Final = tuple(client.conversation for client in CLIENTS if client.conversation is not None)
_COMMON: Final = ("x-session-id", "x-session-affinity", "agent-session-id", "x-conversation-id")
_PARENT: Final = "x-parent-session-id"


def conversation_of(headers: Mapping[str, str], own: Iterable[str] = ()) -> ClientConversation | None:
    """The conversation that a request's headers, by lower-case name, say it belongs to. A sub-agent's is its own."""
    for of_client in _OF_CLIENTS:
        if (conversation := of_client(headers)) is not None:
            return conversation
    for name in (*own, *_COMMON):
        if session := headers.get(name):
            parent = headers.get(_PARENT)
            return ClientConversation(session, None if parent == session else parent or None)
    return None
