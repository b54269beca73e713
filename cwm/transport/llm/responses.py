"""Kept responses of OpenAI's Responses API: read, deleted, their input listed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qsl

from starlette.types import Receive, Scope, Send

from cwm.domain.errors import InvalidParameterError
from cwm.domain.principal import Principal
from cwm.domain.response import Item, ItemQuery
from cwm.domain.showable import shown
from cwm.domain.weight import compact_ascii
from cwm.services.aside import aside_of
from cwm.services.responses.responses import Responses
from cwm.transport.http.envelope import send_whole
from cwm.transport.http.request_keys import PRINCIPAL

_JSON: Final = ((b"content-type", b"application/json"),)
_LISTED, _MOST_LISTED = 20, 100
_ORDERS: Final = ("asc", "desc")


@dataclass(frozen=True, slots=True)
class ResponseEndpoint:
    """``GET`` and ``DELETE /v1/responses/{response}``."""

    responses: Responses

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        principal, response_id = _asked(scope)
        if scope["method"] == "DELETE":
            await self.responses.delete(principal, response_id)
            await send_json(send, {"id": response_id, "object": "response", "deleted": True})
            return
        if query_of(scope).get("stream", "false") not in {"false", "0"}:
            raise InvalidParameterError(
                "Only a response that was created in the background can be streamed again.", field="stream"
            )
        response = await self.responses.response(principal, response_id)
        await send_json(send, response.content)


@dataclass(frozen=True, slots=True)
class CancelEndpoint:
    """``POST /v1/responses/{response}/cancel``."""

    responses: Responses

    async def __call__(self, scope: Scope, _receive: Receive, _send: Send) -> None:
        await self.responses.cancel(*_asked(scope))


@dataclass(frozen=True, slots=True)
class InputItemsEndpoint:
    """``GET /v1/responses/{response}/input_items``."""

    responses: Responses

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        principal, response_id = _asked(scope)
        page = await self.responses.input_items(principal, response_id, item_query(query_of(scope)))
        await send_json(send, listed(page.items, has_more=page.has_more))


def item_query(query: Mapping[str, str]) -> ItemQuery:
    """CWM-1003 for a malformed ``limit`` or ``order``."""
    limit, order, after = query.get("limit", str(_LISTED)), query.get("order", "desc"), query.get("after")
    if not limit.isascii() or not limit.isdigit() or not 1 <= int(limit[:9]) <= _MOST_LISTED:
        raise InvalidParameterError(f"'limit' is a number from 1 to {_MOST_LISTED}.", field="limit")
    if order not in _ORDERS:
        raise InvalidParameterError("'order' is asc or desc.", field="order")
    return ItemQuery(int(limit), order == "desc", after)


def listed(items: Sequence[Item], *, has_more: bool) -> dict[str, Any]:
    """A list as OpenAI pages it."""
    page = [listed_item(item) for item in items]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": has_more,
    }


def listed_item(item: Item) -> dict[str, Any]:
    """An item as the original lists it, whatever form its client sent it in."""
    if item.get("type", "message") != "message":
        return {"status": "completed", **item}
    content = item.get("content")
    if isinstance(content, str):
        kind = "output_text" if item.get("role") == "assistant" else "input_text"
        content = [{"type": kind, "text": content}]
    return {"status": "completed", **item, "type": "message", "content": content}


def _asked(scope: Scope) -> tuple[Principal, str]:
    return scope[PRINCIPAL], scope["path_params"]["response"]


def query_of(scope: Scope) -> dict[str, str]:
    return dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))


async def send_json(send: Send, content: Mapping[str, Any]) -> None:
    text = await aside_of(content, lambda: compact_ascii(shown(content)))
    await send_whole(send, 200, _JSON, text)
