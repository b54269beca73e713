"""Responses and conversations of OpenAI's API that are kept, so that they can be read again and gone on from."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeAlias
from uuid import uuid4

from cwm.domain.errors import ContextTooLargeError
from cwm.domain.weight import MOST_AT_ONCE

Item: TypeAlias = Mapping[str, Any]
"""An item of a conversation in the Responses API, as the client sent or got it."""

REFERENCE: Final = "item_reference"
_ID: Final = re.compile(r"[\w-]{1,128}", re.ASCII)
_PREFIXES: Final = {
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "reasoning": "rs",
}


def is_id(value: object) -> bool:
    """Whether it may be the id of a response, a conversation or an item: what a database cannot look for is not there."""
    return isinstance(value, str) and _ID.fullmatch(value) is not None


def named(item: Item) -> Item:
    """The item with an id."""
    if is_id(item.get("id")):
        return item
    return {**item, "id": f"{_PREFIXES.get(str(item.get('type')), 'msg')}_{uuid4().hex}"}


@dataclass(frozen=True, slots=True)
class ItemQuery:
    """At most ``limit`` items, behind the one with the id ``after`` in this order."""

    limit: int = 20
    descending: bool = True
    after: str | None = None


@dataclass(frozen=True, slots=True)
class ItemPage:
    """A page has fewer items than were asked for where these take much memory. ``weight``: what they take, about, in bytes."""

    items: Sequence[Item]
    has_more: bool
    weight: int


@dataclass(frozen=True, slots=True)
class ItemSum:
    """The items of a conversation, and what they take in memory together."""

    count: int
    weight: int


@dataclass(frozen=True, slots=True)
class LineEntry:
    """A response that others go on from. ``weight``: what it takes in memory, with the items of its request."""

    id: str
    session_id: str
    weight: int


@dataclass(frozen=True, slots=True)
class ContextLimit:
    """The most that a request may go on from, its own input included: ``weight`` in bytes of memory, and ``items`` of a conversation."""

    weight: int = MOST_AT_ONCE
    items: int = 10_000

    def require(self, weight: int, field: str) -> None:
        """CWM-1005."""
        if weight > self.weight:
            raise ContextTooLargeError(
                f"The request and what it goes on from would take {_megabytes(weight)} MB of memory, and the limit is "
                f"{_megabytes(self.weight)} (CWM_CHAINED_CONTEXT_MB): begin a new conversation with a summary of this one.",
                field=field,
                context_bytes=weight,
                limit_bytes=self.weight,
                setting="CWM_CHAINED_CONTEXT_MB",
            )

    def require_items(self, stored: ItemSum, count: int, weight: int, field: str) -> None:
        """CWM-1005 for so many more items of this weight."""
        if stored.count + count > self.items:
            raise ContextTooLargeError(
                f"A conversation holds at most {self.items} items (CWM_CONVERSATION_ITEMS), and this one has {stored.count}: "
                "delete some, or begin a new one.",
                field=field,
                items=stored.count,
                limit=self.items,
                setting="CWM_CONVERSATION_ITEMS",
            )
        self.require(stored.weight + weight, field)


def _megabytes(weight: int) -> str:
    return f"{weight / 2**20:.1f}"


@dataclass(frozen=True, slots=True)
class ResponseAsk:
    """What a request for a response refers to, and what it adds.

    ``items`` are those of this request only; ``references`` the ids of items in it that stand for earlier ones. ``stored``: its client may read
    it again. ``conversation``: it is added to that one.
    """

    id: str
    items: Sequence[Item]
    previous: str | None = None
    references: tuple[str, ...] = ()
    stored: bool = True
    conversation: str | None = None


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response that was recorded as a turn. ``content`` is the response object as its client got it, ``items`` its request's own."""

    tenant: str
    id: str
    owner: str
    session_id: str
    turn_id: str
    created_at: datetime
    items: Sequence[Item]
    content: Mapping[str, Any]
    previous: str | None = None

    @property
    def output(self) -> Sequence[Item]:
        output: Sequence[Item] = self.content.get("output") or ()
        return output


@dataclass(frozen=True, slots=True)
class StoredConversation:
    """A conversation that its client created. ``session_id`` is that of its last turn; ``touched_at``: when it was last changed.

    ``last_response`` is the kept response with which all of its items were sent or answered, if there is one.
    """

    tenant: str
    id: str
    owner: str
    created_at: datetime
    touched_at: datetime
    metadata: Mapping[str, str]
    session_id: str | None = None
    last_response: str | None = None
