"""Runs a gateway inside this process for the duration of a block."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

from cwm.app import create_app
from cwm.settings import Settings
from cwm.transport.http.server import GatewayServer
from cwm.wiring.parts import Parts


@dataclass(frozen=True, slots=True)
class RunningGateway:
    """``parts`` are those that serve the requests. Read them, but do not close them."""

    url: str
    parts: Parts


@asynccontextmanager
async def gateway(settings: Settings) -> AsyncIterator[RunningGateway]:
    """Serve on ``settings.http`` until the block ends. Signal handlers are left to the caller."""
    app = create_app(settings)
    answering: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    server = _Server(settings, app, answering.set_result)
    serving = asyncio.create_task(server.serve(), name="gateway")
    try:
        either: set[asyncio.Future[Any]] = {serving, answering}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            serving.result()
        yield RunningGateway(answering.result(), app.state.parts)
    finally:
        server.should_exit = True
        await serving


class _Server(GatewayServer):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
