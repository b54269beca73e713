"""The conversation with a model that an agent is in while it calls a tool, as far as its client says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cwm.domain.clients.known import CLIENTS
from cwm.domain.conversation import ClientConversation

_CONVERSATIONS: Final = tuple(name for client in CLIENTS for name in client.conversation_meta)
_CALLS: Final = tuple(client.call_meta for client in CLIENTS if client.call_meta)


def conversation_in(meta: Mapping[str, Any]) -> ClientConversation | None:
    conversation_id = _first(meta, _CONVERSATIONS)
    return None if conversation_id is None else ClientConversation(conversation_id)


def call_in(meta: Mapping[str, Any]) -> str | None:
    """The id of the tool call in the model's answer."""
    return _first(meta, _CALLS)


def _first(meta: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    return next((value for name in names if isinstance(value := meta.get(name), str) and value), None)
