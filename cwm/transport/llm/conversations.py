"""Conversations of OpenAI's API: created, described, deleted, and their items."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from pydantic_core import from_json
from starlette.types import Receive, Scope, Send

from cwm.domain.errors import InvalidParameterError
from cwm.domain.response import REFERENCE, Item, StoredConversation
from cwm.domain.showable import require_showable
from cwm.services.responses.conversations import StoredConversations
from cwm.threads import aside
from cwm.transport.http.envelope import body_of
from cwm.transport.http.request_keys import PRINCIPAL
from cwm.transport.llm.responses import item_query, listed, listed_item, query_of, send_json

_ITEMS: Final = 20
_PAIRS, _KEY_CHARS, _VALUE_CHARS = 16, 64, 512


@dataclass(frozen=True, slots=True)
class _Endpoint:
    conversations: StoredConversations


@dataclass(frozen=True, slots=True)
class CreateEndpoint(_Endpoint):
    """``POST /v1/conversations``."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        principal, fields = scope[PRINCIPAL], await _fields(scope, receive)
        items = _items(fields["items"]) if fields.get("items") is not None else []
        conversation = await self.conversations.create(principal, _metadata(fields), items)
        await send_json(send, _object(conversation))


@dataclass(frozen=True, slots=True)
class ConversationEndpoint(_Endpoint):
    """``GET``, ``POST`` and ``DELETE /v1/conversations/{conversation}``."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        principal, conversation_id = scope[PRINCIPAL], scope["path_params"]["conversation"]
        if scope["method"] == "DELETE":
            await self.conversations.delete(principal, conversation_id)
            await send_json(send, {"id": conversation_id, "object": "conversation.deleted", "deleted": True})
            return
        if scope["method"] == "POST":
            metadata = _metadata(await _fields(scope, receive))
            conversation = await self.conversations.describe(principal, conversation_id, metadata)
        else:
            conversation = await self.conversations.conversation(principal, conversation_id)
        await send_json(send, _object(conversation))


@dataclass(frozen=True, slots=True)
class ItemsEndpoint(_Endpoint):
    """``GET`` and ``POST /v1/conversations/{conversation}/items``."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        principal, conversation_id = scope[PRINCIPAL], scope["path_params"]["conversation"]
        if scope["method"] == "POST":
            new = _items((await _fields(scope, receive)).get("items"))
            items = await self.conversations.add(principal, conversation_id, new)
            await send_json(send, listed(items, has_more=False))
            return
        query = item_query(query_of(scope))
        page = await self.conversations.page(principal, conversation_id, query)
        await send_json(send, listed(page.items, has_more=page.has_more))


@dataclass(frozen=True, slots=True)
class ItemEndpoint(_Endpoint):
    """``GET`` and ``DELETE /v1/conversations/{conversation}/items/{item}``."""

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        principal, params = scope[PRINCIPAL], scope["path_params"]
        which = (principal, params["conversation"], params["item"])
        if scope["method"] == "DELETE":
            await send_json(send, _object(await self.conversations.delete_item(*which)))
        else:
            await send_json(send, listed_item(await self.conversations.item(*which)))


def _object(conversation: StoredConversation) -> dict[str, Any]:
    return {
        "id": conversation.id,
        "object": "conversation",
        "created_at": int(conversation.created_at.timestamp()),
        "metadata": conversation.metadata,
    }


async def _fields(scope: Scope, receive: Receive) -> dict[str, Any]:
    body = await body_of(scope, receive)
    return await aside(len(body), partial(_parsed, body))


def _parsed(body: bytes) -> dict[str, Any]:
    """CWM-1003 for what is no JSON object, or could never be shown; no body has no fields."""
    try:
        fields = from_json(body or b"{}", allow_inf_nan=False)
    except ValueError as error:
        raise InvalidParameterError("The request body is not valid JSON.", field="body") from error
    if not isinstance(fields, dict):
        raise InvalidParameterError("The request body must be a JSON object.", field="body")
    require_showable(fields)
    return fields


def _items(value: Any) -> list[Item]:
    if not isinstance(value, list) or len(value) > _ITEMS:
        raise InvalidParameterError(f"'items' is a list of at most {_ITEMS} objects.", field="items")
    for item in value:
        if not isinstance(item, dict) or not (isinstance(item.get("type"), str) or "role" in item):
            raise InvalidParameterError("An item is an object with a 'type' or a 'role'.", field="items")
        if item.get("type") == REFERENCE:
            raise InvalidParameterError("A reference cannot be an item of a conversation.", field="items")
    return value


def _metadata(fields: Mapping[str, Any]) -> Mapping[str, str]:
    metadata = fields.get("metadata")
    if metadata is None:
        return {}
    if (
        not isinstance(metadata, dict)
        or len(metadata) > _PAIRS
        or not all(
            isinstance(value, str) and len(key) <= _KEY_CHARS and len(value) <= _VALUE_CHARS
            for key, value in metadata.items()
        )
    ):
        raise InvalidParameterError(
            f"'metadata' has at most {_PAIRS} keys of at most {_KEY_CHARS} characters, and texts of at most {_VALUE_CHARS} as values.",
            field="metadata",
        )
    return metadata
