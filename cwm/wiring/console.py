"""The console: its pages, or what stands in their place, the sign-in, and the doorstep that leads to them."""

from __future__ import annotations

from typing import Final

from starlette.applications import Starlette
from starlette.routing import Route

from cwm.adapters.local.clock import SystemClock
from cwm.adapters.local.secret import signing_secrets
from cwm.services.access.limits import Limits
from cwm.services.catalogue import Services
from cwm.settings import Settings
from cwm.transport.console.access.entrance import Entrance
from cwm.transport.console.access.form import FormTokens
from cwm.transport.console.access.gate import Gate
from cwm.transport.console.access.sign_in import Cookies
from cwm.transport.console.doorstep import route as doorstep
from cwm.transport.console.routes import absent, routes
from cwm.transport.console.traces import TraceLinks
from cwm.wiring.access import Access

_OFF: Final = "The console is turned off: CWM_CONSOLE is false."
_NO_SIGN_IN: Final = "The console is not served: people could not sign in to it. Set CWM_CONSOLE_CLIENT_ID, or accept API keys."


def console_routes(settings: Settings, services: Services, access: Access, limits: Limits) -> list[Route]:
    is_served = settings.serves_console()
    if not is_served:
        return [doorstep(to_console=False), *absent(_NO_SIGN_IN if settings.http.console else _OFF)]
    ways = _entrance(settings, services, access, limits).routes() if settings.auth.required else []
    return [
        doorstep(to_console=True),
        *ways,
        *routes(services, limits, access.standing, TraceLinks(settings.tracing.trace_url)),
    ]


def add_gate(app: Starlette, settings: Settings, access: Access) -> None:
    """Add what stands before the pages, behind the layer that authenticates every other request."""
    if settings.serves_console():
        app.add_middleware(
            Gate,
            identity=access.identity,
            refusals=access.refusals,
            forms=FormTokens(signing_secrets(settings.isolation), SystemClock()),
            cookies=_cookies(settings),
            home=settings.isolation.tenant,
        )


def _entrance(settings: Settings, services: Services, access: Access, limits: Limits) -> Entrance:
    return Entrance(
        access.identity,
        limits,
        access.refusals,
        services.journal,
        _cookies(settings),
        services.read_audit.trail.tenants,
        settings.isolation.tenant,
        takes_keys=settings.auth.api_keys,
        codes=access.codes,
        scope_prefix=settings.auth.oauth_scope_prefix,
    )


def _cookies(settings: Settings) -> Cookies:
    by_https = (settings.auth.public_url or "").startswith("https://")
    return Cookies(signing_secrets(settings.isolation), SystemClock(), by_https)
