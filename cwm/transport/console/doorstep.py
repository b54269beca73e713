"""``/``: leads browsers to the console, and tells everybody else which faces there are."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from cwm.transport.console.pages import PATH

_FACES: Final = {
    "mcp": "/mcp",
    "openai": "/v1/chat/completions",
    "responses": "/v1/responses",
    "anthropic": "/v1/messages",
    "health": "/healthz",
    "description": "/openapi.json",
}


def route(*, to_console: bool) -> Route:
    """It needs no credentials: agents ask for it before they send any, and it is the same for all."""
    faces = {**_FACES, "console": PATH} if to_console else _FACES

    async def serve(request: Request) -> Response:
        wants_page = "text/html" in request.headers.get("accept", "").lower()
        if to_console and wants_page and request.method == "GET":
            return RedirectResponse(PATH, 303, {"vary": "accept"})
        return JSONResponse({"name": "cwm", "faces": faces}, headers={"vary": "accept"})

    return Route("/", serve)
