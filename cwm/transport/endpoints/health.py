"""Endpoints for orchestrators and Prometheus: liveness, readiness and metrics."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from cwm.domain.principal import Principal
from cwm.ports.meter import Metrics
from cwm.services.health.inspect import Component, Health, Inspect, Status
from cwm.transport.http.request_keys import PRINCIPAL, STRANGER

_PROMETHEUS: Final = "text/plain; version=0.0.4; charset=utf-8"


def routes(inspect: Inspect, metrics: Metrics) -> list[Route]:
    """``/healthz``, ``/readyz`` and ``/metrics``.

    ``/readyz`` returns 503 while the engine or the registry is down. An engine without its cache, and a gateway
    without upstreams or the shared store, can still serve requests. Where credentials are required, a caller
    without any gets the overall status only, and one that is no administrator the engines of its tenant. Each unhealthy component has ``since``: when this process first saw it
    unhealthy, or lost the upstream.
    """
    looking = _Looking(inspect)

    async def healthz(_: Request) -> Response:
        return JSONResponse({"status": "healthy"})

    async def readyz(request: Request) -> Response:
        health = await looking.health("")
        ready = health.status is not Status.UNHEALTHY
        principal = request.scope.get(PRINCIPAL)
        if principal is not None and inspect.is_partial(principal):
            health = await looking.health(principal.tenant, principal)
        elif principal is not None:
            health = inspect.shown_to(principal, health)
        body: dict[str, Any] = {
            "status": health.status,
            "components": [_document(c) for c in health.components],
        }
        if STRANGER in request.scope:
            del body["components"]
        return JSONResponse(
            body,
            status_code=200 if ready else 503,
            headers={"cache-control": "no-store"},
        )

    async def exposition(_: Request) -> Response:
        await metrics.look()
        return PlainTextResponse(metrics.text(), media_type=_PROMETHEUS)

    return [Route("/healthz", healthz), Route("/readyz", readyz), Route("/metrics", exposition)]


class _Looking:
    """Callers that arrive during a check share its result, so that probes cannot pile up on the components."""

    def __init__(self, inspect: Inspect) -> None:
        self._inspect = inspect
        self._asking: dict[str, asyncio.Task[Health]] = {}

    async def health(self, tenant: str, principal: Principal | None = None) -> Health:
        """Of all, or as the principal of a tenant sees it."""
        asking = self._asking.get(tenant)
        if asking is None:
            asking = self._asking[tenant] = asyncio.create_task(self._inspect.health(principal=principal))
            asking.add_done_callback(lambda _: self._asking.pop(tenant))
        return await asyncio.shield(asking)


def _document(component: Component) -> dict[str, Any]:
    document: dict[str, Any] = {
        "name": component.name,
        "status": component.status,
        "message": component.message,
        "latency_ms": component.latency_ms,
    }
    if component.since is None:
        return document
    return {**document, "since": component.since.isoformat(timespec="milliseconds").replace("+00:00", "Z")}
