"""Responses of OpenAI's API that are kept, so that they can be read again and gone on from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

Item: TypeAlias = Mapping[str, Any]
"""An item of a conversation in the Responses API, as the client sent or got it."""


@dataclass(frozen=True, slots=True)
class ResponseAsk:
    """What a request for a response refers to, and what it adds.

    ``items`` are those of this request only; ``references`` the ids of items in it that stand for earlier ones. ``stored``: its client may read
    it again.
    """

    id: str
    items: Sequence[Item]
    previous: str | None = None
    references: tuple[str, ...] = ()
    stored: bool = True


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
