"""Where connections to upstreams are not made, and where their redirects do not lead."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from cwm.adapters.upstream.connector import SdkConnector
from cwm.adapters.upstream.exchange import TokenExchanger
from cwm.adapters.upstream.http import connection_pool
from cwm.domain.upstream import TokenExchange, UpstreamSpec
from cwm.ports.upstream import UpstreamAwayError
from tests.transport.llm.gateway import serving

pytestmark = pytest.mark.slow


@pytest.fixture
def resolves(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What names stand for, as a hostile name server may say."""
    known: dict[str, str] = {}
    real = socket.getaddrinfo

    def resolve(host: Any, *args: Any, **options: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        return real(known.get(name, name), *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    return known


@pytest.mark.parametrize("host", ["169.254.169.254", "[fe80::1]", "metadata.google.internal"])
async def test_a_link_local_address_is_never_asked(host: str) -> None:
    pool = connection_pool(encrypted=False)
    async with httpx2.AsyncClient(transport=pool, trust_env=False) as client:
        with pytest.raises(httpx2.ConnectError, match="link-local"):
            await client.get(f"http://{host}/latest/meta-data")


async def test_a_name_that_leads_there_sends_nothing(
    resolves: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An address of ours stands for theirs, since none of theirs can be reached from a test."""
    heard = asyncio.Event()

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await reader.read(1):
            heard.set()
        writer.close()

    server = await asyncio.start_server(hear, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    resolves["docs.example"] = "127.0.0.1"
    monkeypatch.setattr("cwm.adapters.upstream.destinations.is_link_local", lambda host: host == "127.0.0.1")
    async with (
        server,
        httpx2.AsyncClient(transport=connection_pool(encrypted=False), trust_env=False) as client,
    ):
        with pytest.raises(httpx2.ConnectError, match="link-local"):
            await client.get(f"http://docs.example:{port}/")
    assert not heard.is_set()


async def test_what_is_admitted_is_asked_like_any_other(resolves: dict[str, str]) -> None:
    async def hello(_: Request) -> Response:
        return Response("hello")

    async with serving(Starlette(routes=[Route("/", hello)])) as url:
        for link_local in (True, False):
            pool = connection_pool(encrypted=False, link_local=link_local)
            async with httpx2.AsyncClient(transport=pool, trust_env=False) as client:
                assert (await client.get(url)).text == "hello"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_no_redirect_takes_credentials_elsewhere(status: int) -> None:
    asked: list[str] = []

    async def thief(request: Request) -> Response:
        asked.append(str(request.headers))
        return Response("{}", media_type="application/json")

    anything = ["GET", "POST", "DELETE"]
    async with serving(Starlette(routes=[Route("/{rest:path}", thief, methods=anything)])) as elsewhere:

        async def away(_: Request) -> Response:
            return RedirectResponse(f"{elsewhere}/mcp", status_code=status)

        async with serving(Starlette(routes=[Route("/{rest:path}", away, methods=anything)])) as url:
            connector = SdkConnector()
            spec = UpstreamSpec(
                "docs", url=f"{url}/mcp", headers={"Authorization": "Bearer t"}, connect_seconds=5
            )
            with pytest.raises(UpstreamAwayError):
                await connector.open(spec)
            await connector.aclose()
            exchanger = TokenExchanger()
            with pytest.raises(UpstreamAwayError):
                await exchanger.exchange(TokenExchange(f"{url}/token", "cwm", "secret"), "Bearer caller")
            await exchanger.aclose()
    assert asked == []
