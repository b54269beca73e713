"""The routes of the console, and what answers where it is not served."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final
from urllib.parse import quote

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from cwm.domain.errors import CwmError, InternalError, InvalidParameterError, SecurityError
from cwm.ports.tracing import trace_id_of
from cwm.services.access.limits import Limits
from cwm.services.access.standing import Standing
from cwm.services.catalogue import Services
from cwm.transport.console.actions.offered import ACTIONS
from cwm.transport.console.audit import audit
from cwm.transport.console.engines import engines
from cwm.transport.console.health.doctor import doctor
from cwm.transport.console.health.events import Events
from cwm.transport.console.health.overview import overview
from cwm.transport.console.kept import results, scope, scopes
from cwm.transport.console.keys.page import keys
from cwm.transport.console.pages import PATH, asset, rendered
from cwm.transport.console.refusal import refusal
from cwm.transport.console.traces import NOWHERE, TraceLinks
from cwm.transport.console.turns.compare import compare
from cwm.transport.console.turns.conversations import conversation, conversations
from cwm.transport.console.turns.export import export_conversation, export_turn, export_window
from cwm.transport.console.turns.turn import turn
from cwm.transport.console.upstreams import upstreams
from cwm.transport.console.views import Asked, View
from cwm.transport.console.windows import window, windows
from cwm.transport.http.counted import counted
from cwm.transport.http.request_keys import PRINCIPAL

_VIEWS: Final[dict[str, View]] = {
    "": overview,
    "/conversations": conversations,
    "/conversations/{session_id}": conversation,
    "/conversations/{session_id}/export": export_conversation,
    "/turns/{turn}": turn,
    "/turns/{turn}/export": export_turn,
    "/compare": compare,
    "/windows": windows,
    "/windows/{window_name}": window,
    "/windows/{window_name}/export": export_window,
    "/engines": engines,
    "/upstreams": upstreams,
    "/context": scopes,
    "/context/{scope}": scope,
    "/results": results,
    "/keys": keys,
    "/audit": audit,
    "/doctor": doctor,
}
_WITH_A_FORM: Final = frozenset({"/doctor"})
"""Views that also take the form on their page."""
_NOWHERE: Final = InvalidParameterError("There is nothing at this address.")

_log = logging.getLogger("cwm.console")


def routes(
    services: Services, limits: Limits, standing: Standing, traces: TraceLinks = NOWHERE
) -> list[Route]:
    """Every page, the files that pages load, and a page for each address below ``/console`` that is none."""
    pages = [
        Route(
            f"{PATH}{path}",
            _shown(services, limits, view, path, traces),
            methods=["GET", "POST"] if path in _WITH_A_FORM else ["GET"],
            name=view.__name__,
        )
        for path, view in _VIEWS.items()
    ]
    actions = [
        Route(
            f"{PATH}{path}",
            _shown(services, limits, action, path, traces),
            methods=["GET", "POST"],
            name=f"console{path}",
        )
        for path, action in ACTIONS.items()
    ]
    return [
        *pages,
        *actions,
        Route(f"{PATH}/events", Events(services.live, limits, standing), methods=["GET"]),
        Route(f"{PATH}/static/{{file}}", _static),
        Route(f"{PATH}/{{rest:path}}", _nothing),
    ]


def absent(why: str) -> list[Route]:
    """What answers instead where the console is not served: 404 with a coded error."""

    async def refuse(_: Request) -> Response:
        return JSONResponse(InvalidParameterError(why, field="path").as_dict(), 404)

    return [Route(PATH, refuse), Route(f"{PATH}/{{rest:path}}", refuse)]


def _shown(
    services: Services, limits: Limits, view: View, path: str, traces: TraceLinks
) -> Callable[[Request], Awaitable[Response]]:
    tracer = services.journal.tracer

    async def show(request: Request) -> Response:
        try:
            async with counted(limits, request.scope[PRINCIPAL], request.method):
                page = await view(Asked(services, request.scope[PRINCIPAL], request, traces))
                # A page of fifty turns takes milliseconds, in which other requests are answered.
                return await run_in_threadpool(rendered, page, request)
        except CwmError as error:
            if isinstance(error, SecurityError):
                await services.refusals.note(error, f"{PATH}{path}", request.scope[PRINCIPAL])
            await services.journal.not_found(
                request.scope[PRINCIPAL], f"{PATH}{path}", error, request.path_params
            )
            return refusal(error, request, trace=traces.to(trace_id_of(tracer.carrier())))
        except Exception:  # noqa: BLE001 - logged; a person gets a page all the same
            _log.exception("a page of the console failed")
            trace = traces.to(trace_id_of(tracer.carrier()))
            return refusal(InternalError("The page could not be made."), request, trace=trace)

    return show


async def _static(request: Request) -> Response:
    return asset(request.path_params["file"]) or refusal(_NOWHERE, request, 404)


async def _nothing(request: Request) -> Response:
    page = request.path_params["rest"].strip("/")
    if request.url.path.endswith("/"):
        # Some browsers and people end an address with a slash.
        return RedirectResponse(f"{PATH}/{quote(page)}" if page else PATH, 307)
    return refusal(_NOWHERE, request, 404)
