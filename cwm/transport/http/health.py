"""What orchestrators and Prometheus ask: is the process there, can it work, what did it count."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from cwm.ports.meter import Metrics
from cwm.services.health.inspect import Component, Health, Inspect, Status
from cwm.transport.http.request_keys import STRANGER

_PROMETHEUS: Final = "text/plain; version=0.0.4; charset=utf-8"


def routes(inspect: Inspect, metrics: Metrics) -> list[Route]:
    """``/healthz``, ``/readyz`` and ``/metrics``.

    ``/readyz`` answers 503 while the engine or the registry is down; without its cache an engine still
    answers, and without upstreams or the shared store a gateway. Where credentials are asked for, a caller without
    any learns no more. Each component that is not healthy carries ``since``: when this process first saw it so, or
    lost an upstream.
    """
    since, looking = _Since(), _Looking(inspect)

    async def healthz(_: Request) -> Response:
        return JSONResponse({"status": "healthy"})

    async def readyz(request: Request) -> Response:
        health = await looking.health()
        ready = health.status is not Status.UNHEALTHY
        told: dict[str, Any] = {
            "status": health.status,
            "components": [since.told(c) for c in health.components],
        }
        if STRANGER in request.scope:
            del told["components"]
        return JSONResponse(
            told,
            status_code=200 if ready else 503,
            headers={"cache-control": "no-store"},
        )

    async def exposition(_: Request) -> Response:
        await metrics.look()
        return PlainTextResponse(metrics.text(), media_type=_PROMETHEUS)

    return [Route("/healthz", healthz), Route("/readyz", readyz), Route("/metrics", exposition)]


class _Looking:
    """Whoever asks while the components are being asked gets the same answer: probes cannot pile up on them."""

    def __init__(self, inspect: Inspect) -> None:
        self._inspect = inspect
        self._asking: asyncio.Task[Health] | None = None

    async def health(self) -> Health:
        if self._asking is None:
            self._asking = asyncio.create_task(self._inspect.health())
            self._asking.add_done_callback(self._asked)
        return await asyncio.shield(self._asking)

    def _asked(self, _: asyncio.Task[Health]) -> None:
        self._asking = None


class _Since:
    """Remembers from when on each component was not healthy."""

    def __init__(self) -> None:
        self._down: dict[str, datetime] = {}

    def told(self, component: Component) -> dict[str, Any]:
        told: dict[str, Any] = {
            "name": component.name,
            "status": component.status,
            "message": component.message,
            "latency_ms": component.latency_ms,
        }
        if component.status is Status.HEALTHY:
            self._down.pop(component.name, None)
            return told
        since = component.since or self._down.setdefault(component.name, datetime.now(UTC))
        return {**told, "since": since.isoformat(timespec="milliseconds").replace("+00:00", "Z")}
