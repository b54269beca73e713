"""Stands before the console's pages: says who asks for one, and what makes the tokens of their forms."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.types import ASGIApp, Receive, Scope, Send

from cwm.transport.console.access.form import FormTokens
from cwm.transport.console.pages import PATH
from cwm.transport.http.request_keys import FORMS


@dataclass(frozen=True, slots=True)
class Gate:
    """ASGI middleware for what is at and below ``/console``; everything else passes it untouched."""

    app: ASGIApp
    forms: FormTokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and f"{scope['path']}/".startswith(f"{PATH}/"):
            scope[FORMS] = self.forms
        await self.app(scope, receive, send)
