"""Turns: forwards a request to the engine and returns its answer as it arrives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from starlette.types import Receive, Scope, Send

from cwm.domain.errors import CwmError, InvalidParameterError
from cwm.ports.identity import Identity
from cwm.services.turns.admission import ClientRequest
from cwm.services.turns.pass_through import EngineAnswer, PassThrough
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
from cwm.transport.http.errors import error_event
from cwm.transport.http.request_keys import PRINCIPAL

# The SDKs of OpenAI and Anthropic count in it.
_RETRIES: Final = "x-stainless-retry-count"
# Up to here an answer in one piece is sent whole, with its length.
_WHOLE_BYTES: Final = 256 * 1024


@dataclass(frozen=True, slots=True)
class TurnEndpoint:
    pass_through: PassThrough
    identity: Identity

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = headers_of(scope)
        principal = scope.get(PRINCIPAL) or await self.identity.authenticate(headers)
        request = ClientRequest(
            method="POST",
            path=target_of(scope, scope["path"].rstrip("/")),
            headers=forwarded(headers),
            body=await body_of(receive),
            session_id=headers.get(SESSION_HEADER),
            branch=headers.get(BRANCH_HEADER),
            continued=headers.get(CONTINUE_HEADER),
            conversation=conversation_of(headers, self.pass_through.admission.conversations.policies.headers),
            captured=_captured(headers.get(CAPTURE_HEADER)),
            again=headers.get(_RETRIES, "0") != "0",
            visibility=headers.get(VISIBILITY_HEADER),
        )
        async with watching_the_client(request.left, receive):
            answered = await self.pass_through.turn(principal, request)
            await _send(send, scope["path"], answered)


@asynccontextmanager
async def watching_the_client(left: asyncio.Event, receive: Receive) -> AsyncIterator[None]:
    """Set ``left`` when the client has disconnected, and at the end of the block."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        left.set()

    watching = asyncio.create_task(watch())
    try:
        yield
    finally:
        watching.cancel()
        left.set()


def _captured(value: str | None) -> bool:
    if value not in {None, "off"}:
        raise InvalidParameterError("The header CWM-Capture has one value: off.", field="CWM-Capture")
    return value is None


async def _send(send: Send, path: str, answered: EngineAnswer) -> None:
    headers = returned(answered.headers) + turn_headers(answered)
    if not answered.streamed:
        await _send_body(send, answered, headers)
        return
    await send({"type": "http.response.start", "status": answered.status, "headers": headers})
    try:
        async for chunk in answered.chunks():
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
    except CwmError as error:
        await send({"type": "http.response.body", "body": error_event(error, path), "more_body": True})
    await send({"type": "http.response.body", "body": b""})


def turn_headers(answered: EngineAnswer) -> list[tuple[bytes, bytes]]:
    """What CWM has to say: the cap of the answer, the repairs of the request, the session and turn that were recorded, whether without the answer's ids, and where the request left what was recorded."""
    headers = []
    if answered.capped is not None:
        headers.append((b"CWM-Max-Tokens", b"%d" % answered.capped))
    if answered.repairs:
        headers.append((b"CWM-Repaired", ", ".join(answered.repairs).encode()))
    if answered.session_id is not None:
        headers.append((b"CWM-Session-Id", answered.session_id.encode()))
    if answered.turn_id is not None:
        headers.append((b"CWM-Turn", answered.turn_id.encode()))
    if answered.prompt_only:
        headers.append((b"CWM-Recorded", b"prompt"))
    if (diverged := answered.diverged) is not None:
        role = f"; role={diverged.role}" if diverged.role.isascii() and diverged.role.isidentifier() else ""
        habit = "" if diverged.habit is None else f"; habit={diverged.habit}"
        place = f"{diverged.message}{role}; cause={diverged.cause}{habit}"
        headers.append((b"CWM-Diverged-At", place.encode()))
    return headers


async def _send_body(send: Send, answered: EngineAnswer, headers: list[tuple[bytes, bytes]]) -> None:
    """Send a body whole, so that a failure can still be told, and a large one as it arrives."""
    pieces: list[bytes] = []
    chunks = aiter(answered.chunks())
    async for chunk in chunks:
        pieces.append(chunk)
        if sum(map(len, pieces)) > _WHOLE_BYTES:
            break
    else:
        if answered.turn is not None and answered.cached_tokens is not None:
            headers.append((b"CWM-Cached-Tokens", b"%d" % answered.cached_tokens))
        await send_whole(send, answered.status, headers, b"".join(pieces))
        return
    await send({"type": "http.response.start", "status": answered.status, "headers": headers})
    await send({"type": "http.response.body", "body": b"".join(pieces), "more_body": True})
    try:
        async for chunk in chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
    except CwmError as broken_off:
        # The server closes a connection whose body has no end.
        raise ClientLeftError from broken_off
    await send({"type": "http.response.body", "body": b""})
