"""The OpenAPI description of the HTTP API: everything except ``/mcp``, which describes itself.

For ``/v1`` it describes the fields that CWM reads; all others reach the engine unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from cwm.domain.names import SESSION_ID_PATTERN

_Shape = dict[str, Any]


def _object(required: Mapping[str, _Shape], optional: Mapping[str, _Shape] | None = None) -> _Shape:
    return {
        "type": "object",
        "required": list(required),
        "properties": {**required, **(optional or {})},
    }


def _list(items: _Shape) -> _Shape:
    return {"type": "array", "items": items}


def _one_of(shape: str) -> _Shape:
    return {"$ref": f"#/components/schemas/{shape}"}


def _answer(what: str, shape: _Shape, media_type: str = "application/json") -> _Shape:
    return {"description": what, "content": {media_type: {"schema": shape}}}


_TEXT: Final[_Shape] = {"type": "string"}
_FLAG: Final[_Shape] = {"type": "boolean"}
_COUNT: Final[_Shape] = {"type": "integer", "minimum": 1}
_ANYTHING: Final[_Shape] = {"type": "object"}

_CODED: Final = _object(
    {"code": _TEXT, "message": _TEXT, "retryable": _FLAG, "context": _ANYTHING},
)
_REFUSED: Final = _object(
    {
        "error": _object(
            {
                "message": _TEXT,
                "type": _TEXT,
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "integer", "null"]},
            },
            {"retryable": _FLAG, "context": _ANYTHING},
        )
    },
    {"retry_after_seconds": _COUNT},
)
_SAMPLING: Final[Mapping[str, _Shape]] = {
    "max_tokens": _COUNT,
    "temperature": {"type": "number", "minimum": 0, "maximum": 2},
    "top_p": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
    "seed": {"type": "integer", "minimum": 0},
    "stream": _FLAG,
}
_SHAPES: Final[Mapping[str, _Shape]] = {
    "Coded": _CODED,
    "Refused": _REFUSED,
    "Health": _object({"status": {"enum": ["healthy"]}}),
    "Readiness": _object(
        {"status": {"enum": ["healthy", "degraded", "unhealthy"]}},
        {
            "components": _list(
                _object(
                    {
                        "name": _TEXT,
                        "status": _TEXT,
                        "message": _TEXT,
                        "latency_ms": {"type": ["number", "null"]},
                    },
                    {"since": {"type": "string", "format": "date-time"}},
                )
            )
        },
    ),
    "Reconcile": {**_object({"dry_run": _FLAG}), "additionalProperties": False},
    "Steps": _object(
        {
            "steps": _list(
                _object(
                    {
                        **dict.fromkeys(("action", "tenant", "subject", "outcome", "detail"), _TEXT),
                        "of_session": _FLAG,
                    }
                )
            )
        }
    ),
    "Completion": _object(
        {
            "model": _TEXT,
            "prompt": {
                "anyOf": [
                    {**_TEXT, "minLength": 1},
                    {**_list({"type": "integer", "minimum": 0}), "minItems": 1},
                ]
            },
        },
        _SAMPLING,
    ),
    "Chat": _object(
        {
            "model": _TEXT,
            "messages": {
                **_list(_object({"role": {"enum": ["system", "user", "assistant"]}, "content": _TEXT})),
                "minItems": 1,
            },
        },
        _SAMPLING,
    ),
    "Response": _object(
        {"model": _TEXT, "input": {**_TEXT, "minLength": 1}},
        {"instructions": _TEXT, "max_output_tokens": {"type": "integer", "minimum": 1}},
    ),
    "Answer": _ANYTHING,
    "Models": _object({"data": _list(_object({"id": _TEXT}))}),
}
_TURN: Final[_Shape] = {
    "id": "cmpl-8a7f2c",
    "object": "text_completion",
    "created": 1769078712,
    "model": "llama-3.1-8b",
    "choices": [{"index": 0, "text": " in the auth module.", "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 14},
}
_LIMITED: Final[_Shape] = {
    "code": "CWM-7001",
    "message": "Rate limit exceeded: 60/minute for each session.",
    "retryable": True,
    "context": {"retry_after_seconds": 45},
}
_EXAMPLES: Final[Mapping[str, _Shape]] = {
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
    "Completion": {"model": "llama-3.1-8b", "prompt": "The old token format is used", "max_tokens": 16},
    "Chat": {
        "model": "llama-3.1-8b",
        "messages": [{"role": "user", "content": "Which modules use the old token format?"}],
        "temperature": 0,
    },
    "Response": {
        "model": "llama-3.1-8b",
        "input": "Which modules use the old token format?",
        "max_output_tokens": 16,
    },
    "Answer": _TURN,
    "Models": {"data": [{"id": "llama-3.1-8b"}]},
}
_SESSION: Final[_Shape] = {
    "name": "CWM-Session-Id",
    "in": "header",
    "required": False,
    "description": "The session in which the turn is recorded; the first turn creates it.",
    "schema": {"type": "string", "pattern": SESSION_ID_PATTERN, "examples": ["session_abc123"]},
}


def _refusals(*statuses: int) -> dict[str, _Shape]:
    whys = {
        400: "the request is invalid",
        401: "credentials are missing or invalid",
        403: "the credentials lack a scope",
        404: "not found",
        405: "the method is not allowed",
        409: "the request conflicts with the current state",
        413: "the body is too large",
        429: "a limit is exceeded",
        503: "the engine or a store is unavailable",
        504: "the engine did not answer in time",
    }
    return {str(status): _answer(whys[status], _one_of("Refused")) for status in statuses}


def _turn(summary: str, body: str) -> _Shape:
    answered = _answer("the engine's answer, unchanged", _one_of("Answer"))
    # Each event is data: {…}, the last one data: [DONE].
    answered["content"]["text/event-stream"] = {"schema": {}}
    return {
        "post": {
            "operationId": body.lower(),
            "summary": summary,
            "parameters": [_SESSION],
            "requestBody": {"required": True, "content": {"application/json": {"schema": _one_of(body)}}},
            "responses": {"200": answered, **_refusals(400, 401, 403, 404, 409, 413, 429, 503, 504)},
        }
    }


def _get(operation: str, summary: str, answers: _Shape, *parameters: _Shape) -> _Shape:
    operation_object: _Shape = {"operationId": operation, "summary": summary, "responses": answers}
    return {"get": {**operation_object, "parameters": list(parameters)} if parameters else operation_object}


def description(version: str) -> _Shape:
    """The OpenAPI 3.1 document."""
    name = {**_TEXT, "minLength": 1, "examples": ["llama-3.1-8b"]}
    model = {"name": "model", "in": "path", "required": True, "schema": name}
    return {
        "openapi": "3.1.0",
        "info": {"title": "CWM", "version": version},
        "security": [{}, {"bearer": []}],
        "paths": {
            "/v1/completions": _turn(
                "A completion by the engine, recorded in a session if one is named.", "Completion"
            ),
            "/v1/chat/completions": _turn(
                "A chat with the engine, recorded in a session if one is named.", "Chat"
            ),
            "/v1/responses": _turn(
                "A response by the engine, recorded in a session if one is named.", "Response"
            ),
            "/v1/models": _get(
                "models",
                "The models that the engine serves.",
                {"200": _answer("the models", _one_of("Models")), **_refusals(401, 403, 503, 504)},
            ),
            "/v1/models/{model}": _get(
                "model",
                "One model.",
                {"200": _answer("the model", _one_of("Answer")), **_refusals(400, 401, 403, 404, 503, 504)},
                model,
            ),
            "/healthz": _get(
                "healthz", "Whether the process answers.", {"200": _answer("it answers", _one_of("Health"))}
            ),
            "/readyz": _get(
                "readyz",
                "Whether requests can be served, which components are unhealthy, and since when.",
                {
                    "200": _answer("requests can be served", _one_of("Readiness")),
                    "503": _answer("the engine or the registry is down", _one_of("Readiness")),
                },
            ),
            "/metrics": _get(
                "metrics",
                "All metrics, for Prometheus.",
                {
                    "200": _answer("metrics in Prometheus' text format", _TEXT, "text/plain"),
                    **_refusals(401, 403),
                },
            ),
            "/reconcile": {
                "post": {
                    "operationId": "reconcile",
                    "summary": "Reconcile everything now, or list the steps that would be taken.",
                    "requestBody": {
                        "required": True,
                        "content": {"application/json": {"schema": _one_of("Reconcile")}},
                    },
                    "responses": {
                        "200": _answer("the steps", _one_of("Steps")),
                        "400": _answer("the body is invalid", _one_of("Coded")),
                        "503": _answer(
                            "another gateway is reconciling, or the registry is unavailable", _one_of("Coded")
                        ),
                        **_refusals(401, 403, 413),
                    },
                }
            },
        },
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
