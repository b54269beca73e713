"""The HTTP server: uvicorn with the gateway's limits, and a shutdown that ends streams."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Final

import uvicorn
from fastapi import FastAPI

from cwm.settings import Settings
from cwm.transport.http.bounded import bounded

_KEEP_ALIVE_SECONDS: Final = 75


class DrainingServer(uvicorn.Server):
    """Ends notification streams at shutdown instead of waiting for them: their clients reconnect elsewhere."""

    def __init__(self, config: uvicorn.Config, end_streams: Callable[[], None]) -> None:
        super().__init__(config)
        self._end_streams = end_streams

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._end_streams()
        await super().shutdown(sockets)


class GatewayServer(DrainingServer):
    """Serves ``app`` on ``settings.http`` and calls ``ready`` with its URL once it accepts requests."""

    def __init__(self, settings: Settings, app: FastAPI, ready: Callable[[str], None]) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                host=settings.http.host,
                port=settings.http.port,
                log_config=None,
                access_log=False,
                lifespan="on",
                server_header=False,
                # The gateway's own settings decide which proxies to trust.
                proxy_headers=False,
                # Longer than clients keep idle connections: a request sent while the server closes one would fail.
                timeout_keep_alive=_KEEP_ALIVE_SECONDS,
                # Typed as whole seconds, but any number works, and 0 means immediately.
                timeout_graceful_shutdown=settings.http.drain_seconds,  # type: ignore[arg-type]
                http=bounded(
                    settings.limits.max_header_bytes,
                    settings.limits.header_timeout_seconds,
                    settings.limits.body_timeout_seconds,
                ),
            ),
            app.state.end_streams,
        )
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            self._ready(f"http://{host}:{port}")
