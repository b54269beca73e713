"""What an engine may be given to compile: bombs are refused by field and limit, ordinary schemas are not."""

from __future__ import annotations

import json
from functools import reduce
from time import perf_counter
from typing import Any

import pytest

from cwm.domain.constraints import SchemaLimits, expansion
from cwm.domain.errors import InvalidParameterError

LIMITS = SchemaLimits()


def of_strings(count: int, **schema: Any) -> dict[str, Any]:
    properties = {f"p{number}": {"type": "string", **schema} for number in range(count)}
    return {"type": "object", "properties": properties}


def nested(depth: int) -> dict[str, Any]:
    return reduce(lambda inner, _: {"items": inner}, range(depth), {})


def lists(*most: int) -> dict[str, Any]:
    return reduce(
        lambda inner, count: {"type": "array", "maxItems": count, "items": inner}, most, {"type": "string"}
    )


@pytest.mark.parametrize(
    ("setting", "bomb"),
    [
        ("CWM_SCHEMA_BYTES", {"enum": ["x" * 1_000] * 200}),
        ("CWM_SCHEMA_DEPTH", nested(500)),
        ("CWM_SCHEMA_PROPERTIES", of_strings(1_001)),
        ("CWM_SCHEMA_PATTERNS", of_strings(51, pattern="a")),
        ("CWM_SCHEMA_PATTERNS", of_strings(51, maxLength=9)),
        ("CWM_SCHEMA_EXPANSION", of_strings(1, pattern="(a{1,100}){1,100}")),
        ("CWM_SCHEMA_EXPANSION", of_strings(40, pattern="[a-z]{1,100}")),
        ("CWM_SCHEMA_EXPANSION", {"patternProperties": {"^a{9999}$": {}}}),
        ("CWM_SCHEMA_EXPANSION", {"regex": "a{1,99999999999999999999}"}),
        ("CWM_SCHEMA_EXPANSION", {"grammar": 'root ::= "(" ("a"{1,100} ")"){1,100}'}),
        ("CWM_SCHEMA_EXPANSION", {"grammar": '# "\nroot ::= ("a"{1,100} "("){1,100}'}),
        ("CWM_SCHEMA_EXPANSION", {"grammar": 'start: ("a"~1..100 /[(]"/)~100'}),
        ("CWM_SCHEMA_COUNT", lists(10_000, 10_000, 10_000)),
        ("CWM_SCHEMA_COUNT", {"minLength": 1e400}),
        ("CWM_SCHEMA_DEPTH", {"json": json.dumps(nested(100))}),
        ("CWM_SCHEMA_DEPTH", {"json": "[" * 100_000}),
        ("CWM_SCHEMA_EXPANSION", {"structural_tag": '{"format": {"regex": "a{9999}"}}'}),
    ],
)
def test_what_takes_an_engine_too_long_is_refused_with_its_field_and_the_limit(
    setting: str, bomb: dict[str, Any]
) -> None:
    with pytest.raises(InvalidParameterError, match=f"'response_format' .*{setting}") as refused:
        LIMITS.require("response_format", {"type": "json_schema", "json_schema": {"schema": bomb}})
    context = refused.value.context
    assert (context["field"], context["setting"]) == ("response_format", setting)
    assert context["limit"] == getattr(LIMITS, setting.removeprefix("CWM_SCHEMA_").lower())


@pytest.mark.parametrize(
    "schema",
    [
        of_strings(300),
        of_strings(20, pattern="^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"),
        of_strings(20, maxLength=1_000_000),
        lists(100, 1_000),
        {"enum": [f"choice {number}" for number in range(1_000)]},
        {"properties": {"pattern": {"type": "string"}, "grammar": {"type": "string"}}},
        {"grammar": 'root ::= day "-" day\nday ::= [0-9]{1,4} | "(" day ")"'},
        {"json": "no JSON"},
        {"default": None, "maxItems": True, "minLength": "9"},
    ],
)
def test_ordinary_schemas_pass(schema: dict[str, Any]) -> None:
    LIMITS.require("response_format", schema)


def test_tools_count_together_if_an_answer_is_constrained_to_them_else_not_at_all() -> None:
    tools = [{"function": {"name": f"t{number}", "parameters": of_strings(600)}} for number in range(2)]
    LIMITS.require_tools([{"function": {"name": "t", "parameters": of_strings(9_000)}}], lambda _: False)
    LIMITS.require_tools(tools, lambda tool: tool["function"]["name"] == "t0")
    with pytest.raises(InvalidParameterError, match="'tools'"):
        LIMITS.require_tools(tools, lambda _: True)


@pytest.mark.parametrize(
    ("pattern", "size"),
    [
        ("", 0),
        ("abc", 3),
        ("a{3}", 3),
        ("a{2,5}", 5),
        ("a{2,}", 2),
        ("(ab){3}c", 7),
        ("((a{10}){10}){10}", 1_000),
        ("[^](){9}]{4}", 4),
        (r"\({7}", 7),
        ("a{x}", 4),
        ("a)){5}", 5),
        ("((a{5}", 5),
    ],
)
def test_repetitions_multiply_through_groups(pattern: str, size: int) -> None:
    assert expansion(pattern) == size


@pytest.mark.parametrize("piece", ["[", "[\\", '"\\"', "/\\/", "(", "{1", "~ ", "\n ", "#", "a{1}"])
@pytest.mark.parametrize("grammar", [False, True])
def test_no_text_is_searched_twice(piece: str, *, grammar: bool) -> None:
    started = perf_counter()
    expansion(piece * 100_000 + "\\", grammar=grammar)
    # A second, and hours where each piece searches the rest.
    assert perf_counter() - started < 20
