"""Turns: forwards a request to the engine and returns its answer as it arrives."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from starlette.types import Receive, Scope, Send

from cwm.domain.errors import CwmError, InvalidParameterError
from cwm.services.turns.finding.request import ClientRequest
from cwm.services.turns.sending.pass_through import EngineAnswer, PassThrough
from cwm.transport.http.conversation import conversation_of
from cwm.transport.http.envelope import (
    BRANCH_HEADER,
    CAPTURE_HEADER,
    CONTINUE_HEADER,
    SESSION_HEADER,
    VISIBILITY_HEADER,
    ClientLeftError,
    body_of,
    forwarded,
    headers_of,
    returned,
    send_whole,
    target_of,
)
from cwm.transport.http.errors import AGAIN, error_event
from cwm.transport.http.request_keys import PRINCIPAL

# With these an engine refuses what it may take later.
_LATER: Final = frozenset({408, 409, 429, 500, 502, 503, 504})
_MOST_NAMES, _NAME_CHARS = 16, 64
# The SDKs of OpenAI and Anthropic count in it.
_RETRIES: Final = "x-stainless-retry-count"
# Up to here an answer in one piece is sent whole, with its length.
_WHOLE_BYTES: Final = 256 * 1024


@dataclass(frozen=True, slots=True)
class TurnEndpoint:
    pass_through: PassThrough

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = headers_of(scope)
        request = ClientRequest(
            method="POST",
            path=target_of(scope, scope["path"].rstrip("/")),
            headers=forwarded(headers),
            body=await body_of(scope, receive),
            session_id=headers.get(SESSION_HEADER),
            branch=headers.get(BRANCH_HEADER),
            continued=headers.get(CONTINUE_HEADER),
            conversation=conversation_of(headers, self.pass_through.conversation_headers),
            captured=_captured(headers.get(CAPTURE_HEADER)),
            again=headers.get(_RETRIES, "0") != "0",
            visibility=headers.get(VISIBILITY_HEADER),
        )
        async with watching_the_client(request.left, receive):
            answer = await self.pass_through.turn(scope[PRINCIPAL], request)
            await _send(send, scope["path"], answer)


@asynccontextmanager
async def watching_the_client(departure: asyncio.Event, receive: Receive) -> AsyncIterator[None]:
    """Set ``departure`` when the client has disconnected, and at the end of the block."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        departure.set()

    watching = asyncio.create_task(watch())
    try:
        yield
    finally:
        watching.cancel()
        departure.set()


def _captured(value: str | None) -> bool:
    if value not in {None, "off"}:
        raise InvalidParameterError("The header CWM-Capture has one value: off.", field="CWM-Capture")
    return value is None


async def _send(send: Send, path: str, answer: EngineAnswer) -> None:
    headers = returned(answer.headers) + turn_headers(answer)
    if answer.status >= HTTPStatus.BAD_REQUEST and all(name.lower() != AGAIN for name, _ in headers):
        headers.append((AGAIN, b"true" if answer.status in _LATER else b"false"))
    if not answer.streamed:
        await _send_body(send, answer, headers)
        return
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    try:
        async for chunk in answer.chunks():
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
    except CwmError as error:
        await send({"type": "http.response.body", "body": error_event(error, path), "more_body": True})
    await send({"type": "http.response.body", "body": b""})


def turn_headers(answer: EngineAnswer) -> list[tuple[bytes, bytes]]:
    """What CWM has to say: the cap of the answer, the repairs of the request, the fields that it left out, the session and turn that were recorded, whether without the answer's ids, and where the request left what was recorded."""
    headers = []
    if answer.capped is not None:
        headers.append((b"CWM-Max-Tokens", b"%d" % answer.capped))
    if answer.repairs:
        headers.append((b"CWM-Repaired", ", ".join(answer.repairs).encode()))
    if answer.dropped:
        headers.append((b"CWM-Dropped", _names(answer.dropped)))
    if answer.session_id is not None:
        headers.append((b"CWM-Session-Id", answer.session_id.encode()))
    if answer.turn_id is not None:
        headers.append((b"CWM-Turn", answer.turn_id.encode()))
    if answer.prompt_only:
        headers.append((b"CWM-Recorded", b"prompt"))
    if (diverged := answer.diverged) is not None:
        role = f"; role={diverged.role}" if diverged.role.isascii() and diverged.role.isidentifier() else ""
        habit = "" if diverged.habit is None else f"; habit={diverged.habit}"
        place = f"{diverged.message}{role}; cause={diverged.cause}{habit}"
        headers.append((b"CWM-Diverged-At", place.encode()))
    return headers


def _names(fields: Sequence[str]) -> bytes:
    """The first names in a list, each without what a header cannot have, and how many more there are."""
    names = [re.sub(r"[^\w.-]", "?", name[:_NAME_CHARS], flags=re.ASCII) for name in fields[:_MOST_NAMES]]
    more = [f"and {len(fields) - _MOST_NAMES} more"] if len(fields) > _MOST_NAMES else []
    return ", ".join([*names, *more]).encode()


async def _send_body(send: Send, answer: EngineAnswer, headers: list[tuple[bytes, bytes]]) -> None:
    """Send a body whole, so that a failure can still be told, and a large one as it arrives."""
    pieces: list[bytes] = []
    chunks = aiter(answer.chunks())
    async for chunk in chunks:
        pieces.append(chunk)
        if sum(map(len, pieces)) > _WHOLE_BYTES:
            break
    else:
        if answer.turn is not None and answer.cached_tokens is not None:
            headers.append((b"CWM-Cached-Tokens", b"%d" % answer.cached_tokens))
        await send_whole(send, answer.status, headers, b"".join(pieces))
        return
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": b"".join(pieces), "more_body": True})
    try:
        async for chunk in chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
    except CwmError as broken_off:
        # The server closes a connection whose body has no end.
        raise ClientLeftError from broken_off
    await send({"type": "http.response.body", "body": b""})
