"""``/openapi.json`` shows what it describes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jsonschema import Draft202012Validator, FormatChecker  # type: ignore[import-untyped]

from cwm.transport.endpoints.description import description

DOCUMENT = description("0")


def parameters() -> Iterator[dict[str, Any]]:
    for path in DOCUMENT["paths"].values():
        for operation in path.values():
            yield from operation.get("parameters", ())


def test_every_schema_and_parameter_has_an_example_that_is_good_by_it() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    assert schemas
    for schema in (*schemas.values(), *(each["schema"] for each in parameters())):
        (example,) = schema["examples"]
        assert example
        checked = {**schema, "components": DOCUMENT["components"]}
        Draft202012Validator(checked, format_checker=FormatChecker()).validate(example)
