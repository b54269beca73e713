"""Schemas as they are published: inline, without Pydantic's titles, optional fields without null."""

from __future__ import annotations

from typing import Any, Final

from fastmcp.utilities.json_schema import compress_schema, dereference_refs
from pydantic import TypeAdapter

_NULL: Final = {"type": "null"}


def input_schema(generated: dict[str, Any]) -> dict[str, Any]:
    """``generated`` with optional fields that are simply absent: no null among their types or defaults."""
    schema = compress_schema(dereference_refs(generated), prune_titles=True)
    required = set(schema.get("required", ()))
    properties = {
        name: field if name in required else _optional(field)
        for name, field in schema.get("properties", {}).items()
    }
    return {**schema, "type": "object", "properties": properties, "additionalProperties": False}


def output_schema(output: Any) -> dict[str, Any]:
    """The schema of a TypedDict as it is sent."""
    generated = TypeAdapter(output).json_schema(mode="serialization")
    schema: dict[str, Any] = compress_schema(dereference_refs(generated), prune_titles=True)
    return schema


def _optional(field: dict[str, Any]) -> dict[str, Any]:
    kept = {
        key: value
        for key, value in field.items()
        if key != "anyOf" and not (key == "default" and value is None)
    }
    alternatives = [choice for choice in field.get("anyOf", ()) if choice != _NULL]
    if len(alternatives) == 1:
        return {**alternatives[0], **kept}
    return {**kept, "anyOf": alternatives} if alternatives else kept
