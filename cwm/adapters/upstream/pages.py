"""Reads the page of a list item by item: an odd item is mended or left out, takes no other with it, and is named."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import mcp_types as types
from mcp_types import methods
from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError

from cwm.adapters.upstream.messages import number_fault
from cwm.domain.upstream import Definition, OfferKind

METHODS: Final[Mapping[OfferKind, str]] = {
    OfferKind.TOOLS: "tools/list",
    OfferKind.RESOURCES: "resources/list",
    OfferKind.TEMPLATES: "resources/templates/list",
    OfferKind.PROMPTS: "prompts/list",
}
NAMES: Final[Mapping[OfferKind, str]] = {OfferKind.RESOURCES: "uri", OfferKind.TEMPLATES: "uriTemplate"}
_FIELDS: Final[Mapping[OfferKind, str]] = {OfferKind.TEMPLATES: "resourceTemplates"}
_MODELS: Final[Mapping[OfferKind, type[BaseModel]]] = {
    OfferKind.TOOLS: types.Tool,
    OfferKind.RESOURCES: types.Resource,
    OfferKind.TEMPLATES: types.ResourceTemplate,
    OfferKind.PROMPTS: types.Prompt,
}
# Fields of a page of 2026-07-28, here of one that has one item.
_OF_A_PAGE: Final = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
_LONGEST_NAME: Final = 64
_MOST_REPAIRS: Final = 8


@dataclass(slots=True)
class Page:
    """``odd`` names what was mended or left out, and how."""

    definitions: list[Definition] = field(default_factory=list)
    cursor: str | None = None
    odd: list[str] = field(default_factory=list)


def read_page(kind: OfferKind, version: str, result: Mapping[str, Any]) -> Page:
    """``result`` as ``version`` of MCP defines it. Raises ValueError if it has no list at all."""
    page, items = Page(), result.get(_FIELDS.get(kind, kind.value))
    if not isinstance(items, list):
        raise ValueError("no list")  # noqa: TRY004 - of the upstream's answer, not of an argument
    for number, item in enumerate(items):
        definition, fault = _read(kind, version, item)
        if definition is not None:
            page.definitions.append(definition)
        if fault is not None:
            name = item.get(NAMES.get(kind, "name")) if isinstance(item, dict) else None
            page.odd.append(f"{shown(name) if isinstance(name, str) else f'number {number + 1}'} ({fault})")
    cursor = result.get("nextCursor")
    if isinstance(cursor, str):
        page.cursor = cursor
    elif cursor is not None:
        page.odd.append("what follows (its cursor is no text)")
    return page


def shown(name: str) -> str:
    """An upstream's name for something, in short and without control characters."""
    return json.dumps(name[:_LONGEST_NAME], ensure_ascii=False)


def _read(kind: OfferKind, version: str, item: Any) -> tuple[Definition | None, str | None]:
    """The definition, or None; and what is odd about it."""
    if not isinstance(item, dict):
        return None, "left out: it is no object"
    try:
        if (fault := number_fault(item)) is not None:
            return None, f"left out: it {fault}"
    except PydanticSerializationError:
        return None, "left out: it is nested too deep"
    definition, without = dict(item), list[str]()
    if kind is OfferKind.TOOLS:
        definition["inputSchema"] = _input_schema(item.get("inputSchema"))
        if definition.get("outputSchema") == {}:
            del definition["outputSchema"]
    for _ in range(_MOST_REPAIRS):
        outcome = _wrong(kind, version, definition)
        if isinstance(outcome, dict):
            return outcome, f"without {', '.join(without)}" if without else None
        place, *rest = (str(part) for part in outcome)
        if place in {"name", NAMES.get(kind), "inputSchema"}:
            return None, f"left out: its {place} is not valid"
        if place == "annotations" and rest and isinstance(definition["annotations"], dict):
            without.append(f"annotations.{rest[0]}")
            definition["annotations"] = {k: v for k, v in definition["annotations"].items() if k != rest[0]}
        else:
            without.append(place)
            definition.pop(place, None)
    return None, "left out: it is not valid"


def _wrong(kind: OfferKind, version: str, item: dict[str, Any]) -> Definition | tuple[int | str, ...]:
    """The definition if ``item`` is valid; else the place of the first fault."""
    list_field = _FIELDS.get(kind, kind.value)
    try:
        model = _MODELS[kind].model_validate(item, by_name=False)
        methods.validate_server_result(METHODS[kind], version, {**_OF_A_PAGE, list_field: [item]})
    except ValidationError as error:
        place = error.errors(include_url=False, include_context=False, include_input=False)[0]["loc"]
        return place[2:] if place[:2] == (list_field, 0) else place
    return model.model_dump(by_alias=True, mode="json", exclude_none=True)


def _input_schema(schema: Any) -> Any:
    """The schema with what MCP requires and some servers leave out, in the same meaning: arguments are an object."""
    if schema is None or schema == []:
        return {"type": "object"}
    if not isinstance(schema, dict):
        return schema
    # Some languages cannot tell an empty object from an empty list.
    fields = {
        k: v for k, v in schema.items() if not (k in {"properties", "required"} and (v is None or v == []))
    }
    if "properties" in fields and not isinstance(fields["properties"], dict):
        return None
    return {"type": "object", **fields}
