"""Shapes: the demands of a JSON Schema at each place of a value, as far as they limit leaving out and shortening.

They are on the safe side: a demand of any branch of ``anyOf``, ``oneOf`` or ``if`` counts. Demands that are not
handled here are found by validating the preview.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Final
from urllib.parse import unquote

_ALSO: Final = ("allOf", "anyOf", "oneOf")
_ALSO_ONE: Final = ("if", "then", "else")
_FIXED: Final = ("enum", "const")
_FIXED_TEXT: Final = ("format", "pattern", "contentEncoding", "contentMediaType")
_FIXED_LIST: Final = ("contains", "minContains", "unevaluatedItems")

Schema = Mapping[str, Any]


class Shape:
    """The demands of all schemas that apply to one place."""

    def __init__(self, root: Schema, schemas: Sequence[Schema]) -> None:
        self._root = root
        self._schemas = tuple(_flat(root, schemas))
        self._fields: dict[str, Shape | None] = {}
        self._places: dict[int, Shape | None] = {}

    @cached_property
    def fixed(self) -> bool:
        """Whether the value may not change at all."""
        return self._any(_FIXED)

    @cached_property
    def fixed_text(self) -> bool:
        return self.fixed or self._any(_FIXED_TEXT)

    @cached_property
    def fixed_list(self) -> bool:
        return self.fixed or self._any(_FIXED_LIST)

    @cached_property
    def whole_items(self) -> bool:
        """Whether items have to differ: a reduced item could become equal to another."""
        return self._any(("uniqueItems",))

    @cached_property
    def positional(self) -> bool:
        """Whether items have schemas by position, so that only the last ones can be left out."""
        return any(
            isinstance(schema.get("prefixItems", schema.get("items")), list) for schema in self._schemas
        )

    @cached_property
    def required(self) -> frozenset[str]:
        names = [name for schema in self._schemas for name in _names(schema.get("required"))]
        for schema in self._schemas:
            for keyword in ("dependentRequired", "dependencies"):
                for dependent in _values(schema.get(keyword)):
                    names += _names(dependent)
        return frozenset(names)

    @cached_property
    def least_fields(self) -> int:
        return self._least("minProperties")

    @cached_property
    def least_items(self) -> int:
        return self._least("minItems")

    @cached_property
    def least_length(self) -> int:
        return self._least("minLength")

    def field(self, name: str) -> Shape | None:
        """The shape of the property ``name``, None without demands."""
        if name not in self._fields:
            self._fields[name] = self._of([s for schema in self._schemas for s in _of_field(schema, name)])
        return self._fields[name]

    def item(self, index: int) -> Shape | None:
        place = index if self.positional else 0
        if place not in self._places:
            self._places[place] = self._of([s for schema in self._schemas for s in _of_item(schema, place)])
        return self._places[place]

    def _of(self, schemas: list[Schema]) -> Shape | None:
        return Shape(self._root, schemas) if schemas else None

    def _any(self, keywords: Sequence[str]) -> bool:
        return any(keyword in schema for schema in self._schemas for keyword in keywords)

    def _least(self, keyword: str) -> int:
        sizes = (schema.get(keyword, 0) for schema in self._schemas)
        return max((int(size) for size in sizes if isinstance(size, (int, float))), default=0)


def _flat(root: Schema, schemas: Sequence[Schema]) -> Iterator[Schema]:
    """The schemas, and those that they apply to the same place through references and combinators."""
    waiting, visited = list(schemas), set[int]()
    while waiting:
        schema = waiting.pop(0)
        if id(schema) in visited:
            continue
        visited.add(id(schema))
        yield schema
        for keyword in _ALSO:
            waiting += _schemas(schema.get(keyword))
        waiting += _schemas([schema.get(keyword) for keyword in _ALSO_ONE])
        for keyword in ("dependentSchemas", "dependencies"):
            waiting += _schemas(_values(schema.get(keyword)))
        waiting += _schemas([_referred(root, schema.get(ref)) for ref in ("$ref", "$dynamicRef")])


def _referred(root: Schema, reference: Any) -> Any:
    """The target of a reference within the schema; None for any other reference."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    if not reference.startswith("#/"):
        return root if reference == "#" else _anchored(root, reference[1:])
    place: Any = root
    for name in unquote(reference[2:]).split("/"):
        key = name.replace("~1", "/").replace("~0", "~")
        if isinstance(place, list) and key.isdecimal() and int(key) < len(place):
            place = place[int(key)]
        elif isinstance(place, Mapping) and key in place:
            place = place[key]
        else:
            return None
    return place


def _anchored(root: Schema, anchor: str) -> Any:
    waiting: list[Any] = [root]
    while waiting:
        place = waiting.pop()
        if isinstance(place, Mapping):
            if anchor in {place.get("$anchor"), place.get("$dynamicAnchor")}:
                return place
            waiting += place.values()
        elif isinstance(place, list):
            waiting += place
    return None


def _of_field(schema: Schema, name: str) -> Iterator[Schema]:
    properties = schema.get("properties")
    own = properties.get(name) if isinstance(properties, Mapping) else None
    yield from _schemas([own])
    # Patterns are not matched against the name, as that may take for ever: all of them count.
    yield from _schemas(_values(schema.get("patternProperties")))
    if own is None:
        yield from _schemas([schema.get("additionalProperties"), schema.get("unevaluatedProperties")])


def _of_item(schema: Schema, index: int) -> Iterator[Schema]:
    first = schema.get("prefixItems")
    items = schema.get("items")
    if isinstance(items, list):
        first, items = items, schema.get("additionalItems")
    if isinstance(first, list) and index < len(first):
        yield from _schemas([first[index]])
    else:
        yield from _schemas([items])


def _schemas(candidates: Any) -> list[Schema]:
    return [s for s in candidates if isinstance(s, Mapping)] if isinstance(candidates, (list, tuple)) else []


def _names(candidates: Any) -> list[str]:
    return [name for name in candidates if isinstance(name, str)] if isinstance(candidates, list) else []


def _values(candidates: Any) -> list[Any]:
    return list(candidates.values()) if isinstance(candidates, Mapping) else []
