"""A request as its client sent it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from cwm.domain.conversation import ClientConversation
from cwm.domain.errors import InvalidParameterError
from cwm.domain.turn import Message
from cwm.ports.turn_wire import TurnRequest
from cwm.threads import aside


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """A request as received. ``path`` includes the query; header names are in lower case; ``left`` is set when its client leaves.

    ``branch`` is ``new`` for a turn that is no part of its session's conversation; ``continued`` names what to go on
    from, when the messages are only the new ones. ``conversation`` is what the client calls its conversation; a request
    that is not ``captured`` belongs to no session unless it has a ``session_id``. ``again``: its client sends it once more.
    ``visibility`` is that of the session, if this request opens it.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes = b""
    session_id: str | None = None
    branch: str | None = None
    continued: str | None = None
    conversation: ClientConversation | None = None
    captured: bool = True
    again: bool = False
    visibility: str | None = None
    left: asyncio.Event = field(default_factory=asyncio.Event)


async def messages_of(incoming: ClientRequest, request: TurnRequest) -> Sequence[Message]:
    """The messages of the parsed request, read in a thread if it is large."""
    return await aside(len(incoming.body), request.messages)


def is_recordable(request: TurnRequest) -> bool:
    """Whether a single session can record the request."""
    with suppress(InvalidParameterError):
        request.require_recordable()
        return True
    return False
