"""``GET /console/events``: tells a page what changed, as server-sent events.

Each event is named ``change``; its data is JSON with a ``kind``, and with ``ids`` where it is known what changed. A stream ends
with the key or token of its sign-in, and after five minutes, so that a browser comes again and says who it is.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from cwm.background import cancel_and_wait
from cwm.domain.errors import CwmError
from cwm.services.access.limits import Limits
from cwm.services.access.standing import Standing
from cwm.services.health.live import Listener, Live
from cwm.transport.http.envelope import send_whole
from cwm.transport.http.errors import STATUS, error_headers
from cwm.transport.http.request_keys import CREDENTIAL, PRINCIPAL

_HEADERS: Final = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]
_JSON: Final = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
_BEGINNING: Final = b"retry: 5000\n\n"
_HEARTBEAT: Final = b": \n\n"


@dataclass(frozen=True, slots=True)
class Events:
    """The ASGI application behind the route."""

    live: Live
    limits: Limits
    standing: Standing
    heartbeat_seconds: float = 15.0
    lasts_seconds: float = 300.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        try:
            # It takes no place: a page listens for as long as it is open.
            await self.limits.count_list(scope[PRINCIPAL])
            with self.live.listening(scope[PRINCIPAL], _since(request)) as listener:
                await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
                if request.method == "GET":
                    with self.standing.holds(scope.get(CREDENTIAL), listener.end):
                        await self._tell(listener, receive, send)
                await send({"type": "http.response.body", "body": b""})
        except CwmError as error:
            headers = [*_JSON, *error_headers(error)]
            await send_whole(send, STATUS[error.kind], headers, json.dumps(error.as_dict()).encode())

    async def _tell(self, listener: Listener, receive: Receive, send: Send) -> None:
        """Until the listener ends, the browser leaves, or the time is over."""

        async def write(body: bytes) -> None:
            await send({"type": "http.response.body", "body": body, "more_body": True})

        leaving = asyncio.create_task(_left(receive))
        leaving.add_done_callback(lambda _: listener.end())
        try:
            await write(_BEGINNING)
            with suppress(TimeoutError):
                async with asyncio.timeout(self.lasts_seconds):
                    while not listener.ended:
                        await write(await self._next(listener))
        finally:
            await cancel_and_wait(leaving)

    async def _next(self, listener: Listener) -> bytes:
        """The next events, or a comment by which a connection that is dead is found."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.heartbeat_seconds):
                await listener.news.wait()
        return b"".join(_event(kind, ids) for kind, ids in listener.take().items()) or _HEARTBEAT


def _event(kind: str, ids: Iterable[str]) -> bytes:
    known = sorted(ids)
    data = json.dumps({"kind": kind, "ids": known} if known else {"kind": kind}, separators=(",", ":"))
    return f"event: change\ndata: {data}\n\n".encode()


def _since(request: Request) -> datetime | None:
    """When the page was made, as it says."""
    with suppress(ValueError):
        at = datetime.fromisoformat(request.query_params.get("since", ""))
        return at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return None


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
