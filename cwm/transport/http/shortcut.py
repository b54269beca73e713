"""Serves the path that most requests use, in either spelling and without the router."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send


# Bypass (decision 0028): requests to /mcp go past FastAPI's router and its two middlewares.
class Shortcut:
    """ASGI middleware, the innermost: sends requests for ``path`` to ``to``, which is also mounted behind the router."""

    def __init__(self, app: ASGIApp, path: str, to: ASGIApp) -> None:
        self._app = app
        self._path = path
        self._to = to

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        there = scope["type"] == "http" and scope["path"] == self._path
        await (self._to if there else self._app)(scope, receive, send)


class WithoutSlash:
    """ASGI middleware, the outermost: ``path`` with a slash at its end is ``path``.

    A redirect would name the scheme of this connection, which is not the client's if a proxy terminates TLS.
    """

    def __init__(self, app: ASGIApp, path: str) -> None:
        self._app = app
        self._path = path
        self._spelling = f"{path}/"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == self._spelling:
            scope = {**scope, "path": self._path, "raw_path": self._path.encode()}
        await self._app(scope, receive, send)
