"""A load balancer without sticky sessions: requests go round the replicas, whoever sends them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import httpx2
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Mount
from starlette.types import Receive, Scope, Send

from tests.transport.mcp.gateway import serving

HOP_BY_HOP = {"connection", "host", "keep-alive", "transfer-encoding"}


@dataclass(eq=False, slots=True)
class Replica:
    """``arriving`` counts the requests that it has not begun to answer."""

    http: httpx2.AsyncClient
    arriving: int = 0
    quiet: asyncio.Event = field(default_factory=asyncio.Event)
    answered: int = 0


@dataclass(eq=False, slots=True)
class RoundRobin:
    """An ASGI application. Only a request that no replica has seen goes to another one."""

    replicas: dict[str, Replica] = field(default_factory=dict)

    def add(self, url: str) -> None:
        limits = httpx2.Limits(max_connections=None)
        self.replicas[url] = Replica(
            httpx2.AsyncClient(base_url=url, timeout=None, limits=limits, trust_env=False)
        )

    async def take_out(self, url: str) -> Replica:
        """Send nothing more there, and wait for what is on its way; streams that are open stay open."""
        replica = self.replicas.pop(url)
        while replica.arriving:
            replica.quiet.clear()
            await replica.quiet.wait()
        return replica

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            body = await request.body()
        except ClientDisconnect:
            return
        for _ in range(len(self.replicas) + 1):
            url, replica = next(iter(self.replicas.items()))
            self.replicas[url] = self.replicas.pop(url)
            with suppress(httpx2.ConnectError):
                answer = await self._asked(replica, request, body)
                break
        else:
            await Response(status_code=502)(scope, receive, send)
            return
        relaying = asyncio.create_task(_relay(answer, send))
        leaving = asyncio.create_task(_left(receive))
        await asyncio.wait({relaying, leaving}, return_when=asyncio.FIRST_COMPLETED)
        leaving.cancel()
        relaying.cancel()
        with suppress(asyncio.CancelledError):
            await relaying
        await answer.aclose()

    async def _asked(self, replica: Replica, request: Request, body: bytes) -> httpx2.Response:
        headers = [(name, value) for name, value in request.headers.items() if name not in HOP_BY_HOP]
        replica.arriving += 1
        try:
            asked = replica.http.build_request(
                request.method, request.url.path, headers=headers, content=body
            )
            answer = await replica.http.send(asked, stream=True)
        finally:
            replica.arriving -= 1
            replica.quiet.set()
        replica.answered += 1
        return answer


@asynccontextmanager
async def balanced(*urls: str) -> AsyncIterator[tuple[str, RoundRobin]]:
    """The proxy's URL, and the proxy."""
    proxy = RoundRobin()
    for url in urls:
        proxy.add(url)
    async with serving(Starlette(routes=[Mount("/", proxy)])) as url:
        yield url, proxy
    for replica in proxy.replicas.values():
        await replica.http.aclose()


async def _relay(answer: httpx2.Response, send: Send) -> None:
    headers = [
        (name.encode(), value.encode())
        for name, value in answer.headers.multi_items()
        if name.lower() not in HOP_BY_HOP
    ]
    await send({"type": "http.response.start", "status": answer.status_code, "headers": headers})
    async for chunk in answer.aiter_raw():
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
