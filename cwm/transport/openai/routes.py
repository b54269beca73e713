"""The OpenAI-compatible face: forwards requests to the engine and returns its answers unchanged."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from cwm.domain.errors import CwmError, EngineResponseError, InvalidParameterError
from cwm.domain.model_aliases import ModelAliases
from cwm.ports.identity import Identity
from cwm.services.turns.admission import ClientRequest
from cwm.services.turns.pass_through import EngineAnswer, PassThrough
from cwm.transport.http.conversation import conversation_of
from cwm.transport.http.correlation import ARRIVAL
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
    send_error,
    send_whole,
    target_of,
)
from cwm.transport.http.errors import error_event
from cwm.transport.http.request_keys import PRINCIPAL

# The SDKs of OpenAI and Anthropic count in it.
_RETRIES: Final = "x-stainless-retry-count"
# Up to here an answer in one piece is sent whole, with its length.
_WHOLE_BYTES: Final = 256 * 1024

Serve: TypeAlias = Callable[["Scope", "Receive", "Send"], Awaitable[None]]


def routes(pass_through: PassThrough, identity: Identity) -> list[Route]:
    """Completions, chat completions and models under ``/v1``, with or without a slash at the end.

    The last route refuses all other paths.
    """
    turn, models = _Turns(pass_through, identity), _Models(pass_through, identity)
    endpoints: tuple[tuple[str, str, Serve], ...] = (
        ("POST", "/v1/chat/completions", turn),
        ("POST", "/v1/completions", turn),
        ("GET", "/v1/models", models),
    )
    return [
        # Each route has an endpoint of its own, because spans are named after the route of an endpoint.
        *(
            Route(path + end, _Endpoint(method, serve))
            for method, path, serve in endpoints
            for end in ("", "/")
        ),
        Route("/v1/models/{model:path}", _Endpoint("GET", models)),
        Route("/v1/{rest:path}", _Unknown()),
    ]


@dataclass(frozen=True, slots=True)
class _Endpoint:
    """One method of one path. Coded errors are returned in the OpenAI format."""

    method: str
    serve: Serve

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != self.method:
            refusal = InvalidParameterError(
                f"{scope['path']} accepts {self.method} only.", method=scope["method"], allowed=self.method
            )
            await send_error(send, refusal, 405, [(b"allow", self.method.encode())])
            return
        try:
            await self.serve(scope, receive, send)
        except CwmError as error:
            if (arrival := scope.get(ARRIVAL)) is not None:
                arrival.error = error.code
            await send_error(send, error)
        except ClientLeftError:
            return


@dataclass(frozen=True, slots=True)
class _Turns:
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
        async with _watching_the_client(request.left, receive):
            answered = await self.pass_through.turn(principal, request)
            await _send(send, answered)


@dataclass(frozen=True, slots=True)
class _Models:
    pass_through: PassThrough
    identity: Identity

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        headers = headers_of(scope)
        if PRINCIPAL not in scope:
            await self.identity.authenticate(headers)
        request = ClientRequest("GET", target_of(scope, "/v1/models"), forwarded(headers))
        answered = await self.pass_through.relay(request)
        content = b"".join([chunk async for chunk in answered.chunks()])
        status, model_id = answered.status, scope.get("path_params", {}).get("model")
        if status == 200 and model_id is not None:
            status, content = _one_model(content, model_id, self.pass_through.aliases)
        elif status == 200:
            content = _with_aliases(content, self.pass_through.aliases)
        await send_whole(send, status, returned(answered.headers), content)


class _Unknown:
    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        await send_error(send, InvalidParameterError(f"{scope['path']} is not served here."), 404)


@asynccontextmanager
async def _watching_the_client(left: asyncio.Event, receive: Receive) -> AsyncIterator[None]:
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


async def _send(send: Send, answered: EngineAnswer) -> None:
    headers = returned(answered.headers) + _turn_headers(answered)
    if not answered.streamed:
        await _send_body(send, answered, headers)
        return
    await send({"type": "http.response.start", "status": answered.status, "headers": headers})
    try:
        async for chunk in answered.chunks():
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
    except CwmError as error:
        await send({"type": "http.response.body", "body": error_event(error), "more_body": True})
    await send({"type": "http.response.body", "body": b""})


def _turn_headers(answered: EngineAnswer) -> list[tuple[bytes, bytes]]:
    """Which session and turn were recorded, and at which message the request left what was recorded."""
    headers = []
    if answered.session_id is not None:
        headers.append((b"CWM-Session-Id", answered.session_id.encode()))
    if answered.turn_id is not None:
        headers.append((b"CWM-Turn", answered.turn_id.encode()))
    if (diverged := answered.diverged) is not None:
        role = f"; role={diverged.role}" if diverged.role.isascii() and diverged.role.isidentifier() else ""
        headers.append((b"CWM-Diverged-At", f"{diverged.message}{role}; cause={diverged.cause}".encode()))
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


def _with_aliases(model_list: bytes, aliases: ModelAliases) -> bytes:
    """The list of models as the engine wrote it, with a copy of a model for each of its other names."""
    models = _models_of(model_list)
    if not (others := aliases.names(models)):
        return model_list
    listed = [*models.values(), *({**models[model], "id": name} for name, model in others.items())]
    return json.dumps({**json.loads(model_list), "data": listed}, separators=(",", ":")).encode()


def _one_model(model_list: bytes, model_id: str, aliases: ModelAliases) -> tuple[int, bytes]:
    """Pick one model out of the list, because vLLM has no endpoint for a single model."""
    models = _models_of(model_list)
    name = aliases.served(model_id, models)
    if name is None:
        error = {
            "message": f"The model `{model_id}` does not exist.",
            "type": "NotFoundError",
            "param": "model",
            "code": 404,
        }
        return 404, json.dumps({"error": error}).encode()
    return 200, json.dumps({**models[name], "id": model_id}, separators=(",", ":")).encode()


def _models_of(model_list: bytes) -> dict[str, dict[str, Any]]:
    try:
        return {model["id"]: model for model in json.loads(model_list)["data"]}
    except (ValueError, KeyError, TypeError) as garbled:
        raise EngineResponseError("vLLM's list of models does not have the documented format.") from garbled
