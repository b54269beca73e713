"""Pieces of an OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

Shape = dict[str, Any]

TEXT: Final[Shape] = {"type": "string"}
FLAG: Final[Shape] = {"type": "boolean"}
COUNT: Final[Shape] = {"type": "integer", "minimum": 1}
ANYTHING: Final[Shape] = {"type": "object"}
_REASONS: Final = {
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
    529: "the engine or a store is unavailable",
}


def object_of(required: Mapping[str, Shape], optional: Mapping[str, Shape] | None = None) -> Shape:
    return {
        "type": "object",
        "required": list(required),
        "properties": {**required, **(optional or {})},
    }


def list_of(items: Shape, **limits: int) -> Shape:
    return {"type": "array", "items": items, **limits}


def one_of(shape: str) -> Shape:
    return {"$ref": f"#/components/schemas/{shape}"}


def answer(meaning: str, shape: Shape, media_type: str = "application/json") -> Shape:
    return {"description": meaning, "content": {media_type: {"schema": shape}}}


def refusals(*statuses: int, shape: str = "Refused") -> dict[str, Shape]:
    return {str(status): answer(_REASONS[status], one_of(shape)) for status in statuses}


def body(shape: str, *, required: bool = True) -> Shape:
    return {"required": required, "content": {"application/json": {"schema": one_of(shape)}}}


def operation(name: str, summary: str, answers: Shape, *parameters: Shape, **more: Any) -> Shape:
    """``more`` are further fields of an operation, such as its ``requestBody``."""
    fields: Shape = {"operationId": name, "summary": summary, "responses": answers, **more}
    return {**fields, "parameters": list(parameters)} if parameters else fields
