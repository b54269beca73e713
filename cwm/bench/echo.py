"""Two servers with one tool that says everything again: bare FastMCP, and CWM as it is served.

``python -m cwm.bench.echo bare PORT`` and ``python -m cwm.bench.echo gateway PORT UPSTREAM_URL FOLDER``. Both run
under the same uvicorn with the same event loop.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import uvicorn
import uvloop
from fastmcp import FastMCP
from starlette.types import ASGIApp
from typing_extensions import TypedDict

from cwm.app import create_app
from cwm.domain.upstream import UpstreamSpec
from cwm.settings import Database, Engine, Isolation, Settings
from cwm.transport.mcp.tool import tool

_NOWHERE = "http://127.0.0.1:9"


class Said(TypedDict):
    said: str


async def echo(text: str) -> Said:
    """Say it again."""
    return {"said": text}


def bare() -> ASGIApp:
    server: FastMCP[Any] = FastMCP("bare")
    server.tool(echo, output_schema=None)
    return server.http_app(path="/mcp", stateless_http=True)


def gateway(upstream_url: str, folder: Path) -> ASGIApp:
    """Everything on: sessions, registry, upkeep, and the bare server as an upstream."""
    settings = Settings(
        database=Database(db_path=folder / "cwm.db"),
        engine=Engine(vllm_url=_NOWHERE, lmcache_url=_NOWHERE, coordinator_url=_NOWHERE),
        isolation=Isolation(secret_file=folder / "secret"),
        upstreams=(UpstreamSpec("bare", url=upstream_url),),
    )
    app = create_app(settings)
    app.state.face.add_tool(tool(echo, "Echo", Said, read_only=True))
    return app


def main(which: str, port: str, *rest: str) -> None:
    app = bare() if which == "bare" else gateway(rest[0], Path(rest[1]))
    config = uvicorn.Config(
        app, port=int(port), log_config=None, access_log=False, lifespan="on", timeout_keep_alive=75
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(uvicorn.Server(config).serve())


if __name__ == "__main__":
    main(*sys.argv[1:])
