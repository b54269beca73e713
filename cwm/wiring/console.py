"""The console: its pages, or what stands in their place, and the doorstep that leads to them."""

from __future__ import annotations

from typing import Final

from starlette.applications import Starlette
from starlette.routing import Route

from cwm.adapters.local.clock import SystemClock
from cwm.adapters.local.secret import signing_secrets
from cwm.services.catalogue import Services
from cwm.settings import Settings
from cwm.transport.console.access.form import FormTokens
from cwm.transport.console.access.gate import Gate
from cwm.transport.console.doorstep import route as doorstep
from cwm.transport.console.pages import PATH
from cwm.transport.console.routes import absent, routes
from cwm.transport.console.traces import TraceLinks

_OFF: Final = "The console is turned off: CWM_CONSOLE is false."
_SIGN_IN: Final = (
    "The console is not served where authentication is configured: it has no sign-in. `cwm sessions`, `cwm turns` "
    "and `cwm windows` show what it shows."
)


def console_routes(settings: Settings, services: Services) -> list[Route]:
    served = settings.serves_console()
    pages = (
        routes(services, TraceLinks(settings.tracing.trace_url))
        if served
        else absent(_SIGN_IN if settings.http.console else _OFF)
    )
    return [doorstep(to_console=served), *pages]


def add_gate(app: Starlette, settings: Settings) -> None:
    """Add what stands before the pages, behind the layer that authenticates every other request."""
    app.add_middleware(Gate, forms=FormTokens(signing_secrets(settings.isolation), SystemClock()))


def without_credentials(settings: Settings) -> str | None:
    """The path at and below which nothing is protected, because nothing is there; None if something is."""
    return None if settings.serves_console() else PATH
