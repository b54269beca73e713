"""Servers with one echo tool: bare FastMCP, and CWM in several configurations.

``python -m cwm_bench.harness.echo bare PORT``, ``... gateway PORT UPSTREAM_URL FOLDER`` with the defaults,
``... replica PORT UPSTREAM_URL FOLDER STORE_URL`` with a shared store, and
``... team PORT UPSTREAM_URL FOLDER STORE_URL OTLP_URL`` with the settings of a team; ``... collector PORT`` receives the
team's traces. All run under the same uvicorn with the same event loop.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import uvicorn
import uvloop
from fastmcp import FastMCP
from pydantic import SecretStr
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp
from typing_extensions import TypedDict

from cwm.app import create_app
from cwm.domain.upstream import UpstreamSpec
from cwm.settings import Auth, Database, Engine, Isolation, Limits, Settings, Shared, Tracing
from cwm.transport.mcp.contract.tool import tool

_NOWHERE: Final = "http://127.0.0.1:9"
_OUT_OF_REACH: Final = "1000000/minute, 10000000/hour"


class Echo(TypedDict):
    text: str


async def echo(text: str) -> Echo:
    """Say it again."""
    return {"text": text}


def bare() -> ASGIApp:
    server: FastMCP[Any] = FastMCP("bare")
    server.tool(echo, output_schema=None)
    return server.http_app(path="/mcp", stateless_http=True)


def gateway(upstream_url: str, folder: str) -> ASGIApp:
    """CWM with its defaults, and the bare server as its upstream."""
    return _served(_settings(upstream_url, Path(folder)))


def replica(upstream_url: str, folder: str, store_url: str) -> ASGIApp:
    """The same as one of several replicas with a shared store: any of them may serve a session."""
    return _served(replace(_settings(upstream_url, Path(folder)), shared=_shared(store_url)))


def team(upstream_url: str, folder: str, store_url: str, otlp_url: str) -> ASGIApp:
    """The same with API keys, a shared store, limits of every kind that nobody reaches, and a trace of every call."""
    return _served(
        replace(
            _settings(upstream_url, Path(folder)),
            auth=Auth(api_keys=True),
            shared=_shared(store_url),
            limits=Limits(
                rate_limit_session=_OUT_OF_REACH,
                rate_limit_principal=_OUT_OF_REACH,
                rate_limit_tenant=_OUT_OF_REACH,
                concurrent_principal=1_000,
                concurrent_tenant=1_000,
            ),
            tracing=Tracing(otlp_endpoint=otlp_url),
        )
    )


def _settings(upstream_url: str, folder: Path) -> Settings:
    return Settings(
        database=Database(db_path=folder / "cwm.db"),
        engine=Engine(vllm_url=_NOWHERE, lmcache_url=_NOWHERE, coordinator_url=_NOWHERE),
        isolation=Isolation(secret_file=folder / "secret"),
        upstreams=(UpstreamSpec("bare", url=upstream_url),),
    )


def _shared(store_url: str) -> Shared:
    return Shared(shared_store_url=SecretStr(store_url))


def _served(settings: Settings) -> ASGIApp:
    app = create_app(settings)
    app.state.face.add_tool(tool(echo, "Echo", Echo, read_only=True))
    return app


def collector() -> ASGIApp:
    """Counts the bytes of the traces that it receives."""
    received_bytes = 0

    async def take(request: Request) -> Response:
        nonlocal received_bytes
        received_bytes += len(await request.body())
        return Response()

    async def tell(_: Request) -> Response:
        return JSONResponse(received_bytes)

    return Starlette(routes=[Route("/v1/traces", take, methods=["POST"]), Route("/taken", tell)])


_SERVERS: Final[dict[str, Callable[..., ASGIApp]]] = {
    each.__name__: each for each in (bare, gateway, replica, team, collector)
}


def main(which: str, port: str, *rest: str) -> None:
    app = _SERVERS[which](*rest)
    config = uvicorn.Config(
        app, port=int(port), log_config=None, access_log=False, lifespan="on", timeout_keep_alive=75
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(uvicorn.Server(config).serve())


if __name__ == "__main__":
    main(*sys.argv[1:])
