"""A gateway inside this process, for as long as a block lasts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from socket import socket

import uvicorn

from cwm.app import Parts, create_app
from cwm.settings import Settings


@dataclass(frozen=True, slots=True)
class RunningGateway:
    """``parts`` are those that serve the requests; look, do not close."""

    url: str
    parts: Parts


@asynccontextmanager
async def gateway(settings: Settings) -> AsyncIterator[RunningGateway]:
    """Serve on ``settings.http`` until the block ends. Signals stay with the caller."""
    app = create_app(settings)
    server = _Server(
        uvicorn.Config(
            app,
            host=settings.http.host,
            port=settings.http.port,
            log_config=None,
            access_log=False,
            lifespan="on",
            timeout_graceful_shutdown=5,
        )
    )
    serving = asyncio.create_task(server.serve(), name="gateway")
    answering = asyncio.create_task(server.answering.wait())
    try:
        await asyncio.wait({serving, answering}, return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            serving.result()
        host, port = server.servers[0].sockets[0].getsockname()[:2]
        yield RunningGateway(f"http://{host}:{port}", app.state.parts)
    finally:
        answering.cancel()
        server.should_exit = True
        await serving


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.answering = asyncio.Event()

    async def startup(self, sockets: list[socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self.answering.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
