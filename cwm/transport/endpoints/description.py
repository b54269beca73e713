"""The OpenAPI description of the HTTP API: all but ``/mcp``, which describes itself, and the console's pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from cwm.transport.endpoints import engine_paths
from cwm.transport.endpoints.openapi import (
    ANYTHING,
    COUNT,
    FLAG,
    TEXT,
    Shape,
    answer,
    body,
    list_of,
    object_of,
    one_of,
    operation,
    refusals,
)

_SHAPES: Final[Mapping[str, Shape]] = {
    "Coded": object_of({"code": TEXT, "message": TEXT, "retryable": FLAG, "context": ANYTHING}),
    "Refused": object_of(
        {
            "error": object_of(
                {
                    "message": TEXT,
                    "type": TEXT,
                    "param": {"type": ["string", "null"]},
                    "code": {"type": ["string", "integer", "null"]},
                },
                {"retryable": FLAG, "context": ANYTHING},
            )
        },
        {"retry_after_seconds": COUNT},
    ),
    "Root": object_of({"name": {"enum": ["cwm"]}, "faces": ANYTHING}),
    "Health": object_of({"status": {"enum": ["healthy"]}}),
    "Readiness": object_of(
        {"status": {"enum": ["healthy", "degraded", "unhealthy"]}},
        {
            "components": list_of(
                object_of(
                    {
                        "name": TEXT,
                        "status": TEXT,
                        "message": TEXT,
                        "latency_ms": {"type": ["number", "null"]},
                    },
                    {"since": {"type": "string", "format": "date-time"}},
                )
            )
        },
    ),
    "Reconcile": {**object_of({"dry_run": FLAG}), "additionalProperties": False},
    "Steps": object_of(
        {
            "steps": list_of(
                object_of(
                    {
                        **dict.fromkeys(("action", "tenant", "subject", "outcome", "detail"), TEXT),
                        "of_session": FLAG,
                    }
                )
            )
        }
    ),
    **engine_paths.SHAPES,
}
_LIMITED: Final[Shape] = {
    "code": "CWM-7001",
    "message": "Rate limit exceeded: 60/minute for each session.",
    "retryable": True,
    "context": {"retry_after_seconds": 45},
}
_EXAMPLES: Final[Mapping[str, Shape]] = {
    "Coded": {
        "code": "CWM-4001",
        "message": "Another gateway is reconciling.",
        "retryable": True,
        "context": {},
    },
    "Refused": {
        "error": {"type": "rate_limit_error", "param": None, **_LIMITED},
        "retry_after_seconds": 45,
    },
    "Root": {"name": "cwm", "faces": {"mcp": "/mcp", "anthropic": "/v1/messages", "console": "/console"}},
    "Health": {"status": "healthy"},
    "Readiness": {
        "status": "degraded",
        "components": [
            {"name": "registry", "status": "healthy", "message": "OK", "latency_ms": 1.2},
            {
                "name": "kv_store",
                "status": "unhealthy",
                "message": "LMCache does not answer.",
                "latency_ms": None,
                "since": "2026-01-22T10:30:00Z",
            },
        ],
    },
    "Reconcile": {"dry_run": True},
    "Steps": {
        "steps": [
            {
                "action": "delete_window",
                "tenant": "default",
                "subject": "old-experiment",
                "outcome": "planned",
                "detail": "it expired at 2026-01-22 10:30:00 UTC",
                "of_session": False,
            }
        ]
    },
    **engine_paths.EXAMPLES,
}
_PATHS: Final[Mapping[str, Shape]] = {
    **engine_paths.PATHS,
    "/": {
        "get": operation(
            "root",
            "Which faces there are, by their paths. A browser is led to the console, where that is served.",
            {
                "200": answer("the faces", one_of("Root")),
                "303": {"description": "the caller accepts HTML, and there is a console"},
            },
        )
    },
    "/healthz": {
        "get": operation(
            "healthz", "Whether the process answers.", {"200": answer("it answers", one_of("Health"))}
        )
    },
    "/readyz": {
        "get": operation(
            "readyz",
            "Whether requests can be served, which components are unhealthy, and since when.",
            {
                "200": answer("requests can be served", one_of("Readiness")),
                "503": answer("the engine or the registry is down", one_of("Readiness")),
            },
        )
    },
    "/metrics": {
        "get": operation(
            "metrics",
            "All metrics, for Prometheus.",
            {"200": answer("metrics in Prometheus' text format", TEXT, "text/plain"), **refusals(401, 403)},
        )
    },
    "/reconcile": {
        "post": operation(
            "reconcile",
            "Reconcile everything now, or list the steps that would be taken.",
            {
                "200": answer("the steps", one_of("Steps")),
                "400": answer("the body is invalid", one_of("Coded")),
                "503": answer(
                    "another gateway is reconciling, or the registry is unavailable", one_of("Coded")
                ),
                "413": answer("the body is too large", one_of("Coded")),
                "429": answer("the caller is over a limit", one_of("Coded")),
                **refusals(401, 403),
            },
            requestBody=body("Reconcile"),
        )
    },
}


def description(version: str) -> Shape:
    """The OpenAPI 3.1 document."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "CWM", "version": version},
        "security": [{}, {"bearer": []}],
        "paths": _PATHS,
        "components": {
            "schemas": {name: {**shape, "examples": [_EXAMPLES[name]]} for name, shape in _SHAPES.items()},
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


def routes(version: str) -> list[Route]:
    """``/openapi.json``. It needs no credentials: the document is the same for every gateway."""
    document = description(version)

    async def serve(_: Request) -> Response:
        return JSONResponse(document)

    return [Route("/openapi.json", serve)]
