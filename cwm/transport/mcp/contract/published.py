"""Turns Pydantic's schemas into published ones: inline, without titles, optional fields without null."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from fastmcp.utilities.json_schema import compress_schema
from pydantic import TypeAdapter

_NULL: Final = {"type": "null"}
_DEFINITIONS: Final = "$defs"
_DEFINED: Final = f"#/{_DEFINITIONS}/"


def input_schema(generated: dict[str, Any]) -> dict[str, Any]:
    """``generated`` without null among the types and defaults of its optional fields: a client omits them."""
    schema = compress_schema(_inline(generated), prune_titles=True)
    required = set(schema.get("required", ()))
    properties = {
        name: field if name in required else _optional(field)
        for name, field in schema.get("properties", {}).items()
    }
    return {**schema, "type": "object", "properties": properties, "additionalProperties": False}


@cache
def output_schema(output: Any) -> dict[str, Any]:
    """The schema of a TypedDict as it is serialized. Every gateway of a process gets the same object."""
    generated = TypeAdapter(output).json_schema(mode="serialization")
    schema: dict[str, Any] = compress_schema(_inline(generated), prune_titles=True)
    return schema


def _optional(field: dict[str, Any]) -> dict[str, Any]:
    rest = {
        key: value
        for key, value in field.items()
        if key != "anyOf" and not (key == "default" and value is None)
    }
    alternatives = [choice for choice in field.get("anyOf", ()) if choice != _NULL]
    if len(alternatives) == 1:
        return {**alternatives[0], **rest}
    return {**rest, "anyOf": alternatives} if alternatives else rest


def _inline(schema: dict[str, Any]) -> dict[str, Any]:
    """``schema`` with each reference replaced by its definition; none of the definitions is recursive."""

    def resolved(node: Any) -> Any:
        if isinstance(node, list):
            return [resolved(each) for each in node]
        if not isinstance(node, dict):
            return node
        if "$ref" in node:
            siblings = {key: value for key, value in node.items() if key != "$ref"}
            return resolved({**schema[_DEFINITIONS][node["$ref"].removeprefix(_DEFINED)], **siblings})
        return {key: resolved(value) for key, value in node.items()}

    return {key: resolved(value) for key, value in schema.items() if key != _DEFINITIONS}
