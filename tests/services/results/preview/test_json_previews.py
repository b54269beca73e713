"""Previews of JSON: in budget, valid by the schema, and nothing but what the result says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cwm.domain.preview import Omission, Preview, Unit
from cwm.domain.tool_policy import PreviewKind, ToolPolicy
from cwm.services.results.preview.result import preview_result
from tests.services.results.preview.values import MAPS, OBJECTS, VALUES, Thirds, is_reduction, schemas

KINDS = st.sampled_from(PreviewKind)
BUDGETS = st.integers(24, 400)
PATHS = st.sampled_from(("id", "**.id", "items[*].name", "*.status", "items", '"a.b"', "user.items[*]"))


def of(value: Any, policy: ToolPolicy, schema: dict[str, Any] | None = None) -> Preview:
    return preview_result([], value, policy, Thirds(), schema)


def tokens(value: Any) -> int:
    return Thirds().count(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


@given(OBJECTS | MAPS, KINDS, BUDGETS, st.lists(PATHS, max_size=3))
def test_a_preview_is_in_its_budget_and_says_nothing_that_the_result_does_not(
    value: dict[str, Any], kind: PreviewKind, budget: int, fields: list[str]
) -> None:
    policy = ToolPolicy(
        preview_tokens=budget, preview=kind, fields=tuple(fields), keywords=("failed", "明日")
    )
    preview = of(value, policy)
    assert is_reduction(value, preview.structured)
    assert tokens(preview.structured) == preview.account.tokens <= budget
    assert not preview.account.over_budget
    assert bool(preview.account.omissions) == (preview.structured != value)
    assert preview == of(value, policy)


@pytest.mark.slow
@given(OBJECTS | MAPS, KINDS, BUDGETS, st.lists(PATHS, max_size=2), st.data())
def test_a_preview_is_valid_by_every_schema_that_the_result_is_valid_by(
    value: dict[str, Any], kind: PreviewKind, budget: int, fields: list[str], data: st.DataObject
) -> None:
    schema = data.draw(schemas(value))
    validator = jsonschema.Draft202012Validator(schema)
    assume(validator.is_valid(value))
    policy = ToolPolicy(preview_tokens=budget, preview=kind, fields=tuple(fields))
    preview = of(value, policy, schema)
    validator.validate(preview.structured)
    assert is_reduction(value, preview.structured)
    assert preview.account.over_budget == (tokens(preview.structured) > budget)


@given(VALUES, BUDGETS)
def test_the_preview_of_a_json_text_is_json(value: Any, budget: int) -> None:
    assume(isinstance(value, (dict, list)))
    text = json.dumps(value, indent=2)
    preview = preview_result(
        [{"type": "text", "text": text}], None, ToolPolicy(preview_tokens=budget), Thirds()
    )
    shown = preview.content[0]["text"]
    assert shown == text or is_reduction(value, json.loads(shown))
    assert Thirds().count(shown) == preview.account.tokens <= budget


ISSUES = {
    "total_count": 300,
    "items": [
        {
            "id": 1000 + number,
            "title": f"The build fails on machine {number}",
            "state": "open",
            "labels_url": f"https://api.example.org/issues/{number}/labels",
            "user": {"login": "osei", "id": 7, "avatar_url": "https://example.org/a/7"},
            "labels": [{"name": f"label {n}", "color": "ff0000"} for n in range(8)],
            "closed_at": None,
            "body": "It worked last week. Then somebody changed the lock file. " * 20,
        }
        for number in range(300)
    ],
}


def test_a_list_of_records_shows_ten_of_them_before_it_shows_everything_of_one() -> None:
    preview = of(ISSUES, ToolPolicy(preview_tokens=1000))
    items = preview.structured["items"]
    assert preview.structured["total_count"] == 300
    assert len(items) >= 10
    assert items[0]["title"] == "The build fails on machine 0"
    assert items[0]["user"]["login"] == "osei"
    assert "labels_url" not in items[0]
    assert preview.account.omissions[0] == Omission("items", Unit.ITEMS, len(items), 300)
    assert preview.account.line.startswith(f"Shown: items {len(items)} of 300; items[*] without ")


def test_pages_show_whole_items() -> None:
    preview = of(ISSUES, ToolPolicy(preview_tokens=2000, preview=PreviewKind.PAGE))
    assert preview.structured["items"] == ISSUES["items"][: len(preview.structured["items"])]  # type: ignore[index]
    assert preview.account.line == f"Shown: items {len(preview.structured['items'])} of 300."


def test_a_tail_shows_the_last_items() -> None:
    preview = of(
        {"events": [{"at": n} for n in range(4000)]}, ToolPolicy(preview_tokens=50, preview=PreviewKind.TAIL)
    )
    events = preview.structured["events"]
    assert events == [{"at": n} for n in range(4000 - len(events), 4000)]


def test_fields_that_the_policy_names_are_all_that_is_kept() -> None:
    policy = ToolPolicy(preview_tokens=400, fields=("items[*].id", "items[*].user.login"))
    preview = of(ISSUES, policy)
    assert set(preview.structured) == {"items"}
    assert preview.structured["items"][0] == {"id": 1000, "user": {"login": "osei"}}
    assert len(preview.structured["items"]) > 20


def test_wildcards_reach_any_field_and_any_depth() -> None:
    deep = of(ISSUES, ToolPolicy(preview_tokens=400, fields=("**.id",))).structured["items"][0]
    assert deep == {"id": 1000, "user": {"id": 7}}
    names = of(ISSUES, ToolPolicy(preview_tokens=400, fields=("items.*.name",))).structured["items"][0]
    assert set(names) == {"labels"}
    assert set(names["labels"][0]) == {"name"}


def test_fields_that_are_not_there_leave_the_projection_to_us() -> None:
    policy = ToolPolicy(preview_tokens=400, fields=("results[*].id",))
    assert of(ISSUES, policy).structured == of(ISSUES, ToolPolicy(preview_tokens=400)).structured


def test_an_object_with_very_many_keys_is_paged() -> None:
    preview = of({f"pkg-{n}": {"version": f"1.{n}"} for n in range(3000)}, ToolPolicy(preview_tokens=200))
    shown = len(preview.structured)
    assert shown > 10
    assert preview.account.line == f"Shown: {shown} of 3,000 entries."


def test_a_long_text_in_an_object_takes_the_room_there_is() -> None:
    value = {"path": "README.md", "text": "It is a long story. " * 5000}
    preview = of(value, ToolPolicy(preview_tokens=500))
    assert preview.structured["path"] == "README.md"
    assert preview.structured["text"].endswith(" more words]")
    assert preview.account.tokens > 400


def test_what_is_nested_too_deeply_to_walk_is_left_out() -> None:
    value: Any = {"id": 1}
    for _ in range(150):
        value = {"id": 0, "child": [value]}
    preview = of({"trees": [value] * 100}, ToolPolicy(preview_tokens=20_000, fields=("**.id",)))
    assert 10 < json.dumps(preview.structured["trees"][0]).count("child") < 150


# Schemas as tools publish them: FastMCP's of a function that returns a list, and others' by hand.
LISTING = {
    "type": "object",
    "required": ["result"],
    "x-fastmcp-wrap-result": True,
    "properties": {"result": {"type": "array", "items": {"$ref": "#/$defs/Issue"}}},
    "$defs": {
        "Issue": {
            "type": "object",
            "required": ["id", "title", "user", "body", "labels"],
            "properties": {
                "id": {"type": "integer"},
                "title": {"type": "string", "minLength": 1},
                "state": {"enum": ["open", "closed"]},
                "user": {"anyOf": [{"$ref": "#/$defs/User"}, {"type": "null"}]},
                "body": {"type": "string"},
                "labels": {"type": "array", "minItems": 1, "items": {"type": "object", "required": ["name"]}},
                "closed_at": {"anyOf": [{"type": "string", "format": "date-time"}, {"type": "null"}]},
            },
        },
        "User": {"type": "object", "required": ["login", "id"], "properties": {"login": {"type": "string"}}},
    },
}
TREE = {
    "$defs": {
        "entry": {
            "type": "object",
            "required": ["name", "type"],
            "properties": {
                "name": {"type": "string"},
                "type": {"type": "string", "enum": ["file", "directory"]},
                "children": {"type": "array", "items": {"$ref": "#/$defs/entry"}},
            },
            "additionalProperties": False,
        }
    },
    "type": "object",
    "properties": {"root": {"$ref": "#/$defs/entry"}},
    "required": ["root"],
}
EVENTS = {
    "type": "object",
    "properties": {
        "events": {
            "type": "array",
            "minItems": 2,
            "items": {
                "oneOf": [
                    {"required": ["kind", "text"], "properties": {"kind": {"const": "message"}}},
                    {"required": ["kind", "code"], "properties": {"kind": {"const": "exit"}}},
                ]
            },
        },
        "digest": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
    },
    "required": ["events", "digest"],
}

HIDDEN = {
    "properties": {
        "items": {
            "items": {
                "oneOf": [
                    {
                        "properties": {"closed_at": {"type": "null"}},
                        "not": {"not": {"required": ["closed_at"]}},
                    },
                    {
                        "required": ["closed_at"],
                        "properties": {"closed_at": {"format": "date-time", "minLength": 9}},
                    },
                ],
                "not": {"properties": {"body": {"maxLength": 100}}},
            }
        }
    }
}


def tree(depth: int) -> dict[str, Any]:
    if depth == 0:
        return {"name": "leaf.py", "type": "file"}
    return {"name": f"level {depth}", "type": "directory", "children": [tree(depth - 1) for _ in range(6)]}


EVENT_LIST = [
    {"kind": "exit", "code": n} if n % 5 == 0 else {"kind": "message", "text": f"step {n} went well. " * 9}
    for n in range(500)
]


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        ({"result": ISSUES["items"]}, LISTING),
        ({"root": tree(5)}, TREE),
        ({"events": EVENT_LIST, "digest": "0123456789abcdef" * 4}, EVENTS),
        (ISSUES, HIDDEN),
    ],
    ids=["listing", "tree", "events", "hidden"],
)
@pytest.mark.parametrize("budget", [150, 2000])
@pytest.mark.parametrize("kind", PreviewKind)
def test_schemas_as_tools_publish_them_hold_for_previews_too(
    value: dict[str, Any], schema: dict[str, Any], budget: int, kind: PreviewKind
) -> None:
    preview = of(value, ToolPolicy(preview_tokens=budget, preview=kind), schema)
    jsonschema.Draft202012Validator(schema).validate(preview.structured)
    assert is_reduction(value, preview.structured)
    assert not preview.account.over_budget
    assert preview.account.tokens <= budget


def test_what_no_schema_allows_to_be_smaller_is_delivered_and_said_to_be_over_budget() -> None:
    value = {"digest": "ab" * 2000, "note": "It may go. " * 100}
    schema = {"required": ["digest"], "properties": {"digest": {"pattern": "^[0-9a-f]{4000}$"}}}
    preview = of(value, ToolPolicy(preview_tokens=100), schema)
    assert preview.structured == {"digest": value["digest"]}
    assert preview.account.over_budget
    assert preview.account.line.endswith("It can be cut no further, and is over the budget.")


def test_a_schema_that_the_result_itself_breaks_does_not_stop_the_preview() -> None:
    preview = of(ISSUES, ToolPolicy(preview_tokens=300), {"required": ["no such"]})
    assert preview.account.tokens <= 300


@pytest.mark.parametrize(
    "schema",
    [{"$ref": "https://example.org/schema.json"}, {"type": 5}, {"properties": {"items": {"pattern": "("}}}],
)
def test_a_schema_that_nobody_can_use_does_not_stop_the_preview(schema: dict[str, Any]) -> None:
    assert of(ISSUES, ToolPolicy(preview_tokens=300), schema).account.tokens <= 300


def test_a_pattern_that_takes_for_ever_does_not_hang_the_preview() -> None:
    value = {"name": "a" * 60 + "!", "items": ISSUES["items"]}
    schema = {"properties": {"name": {"pattern": "^(?=(a+)+$)(a+)+$"}}, "required": ["name"]}
    assert of(value, ToolPolicy(preview_tokens=300), schema).account.tokens <= 300


def test_every_process_makes_the_same_bytes() -> None:
    program = (
        "import json\n"
        "from cwm.domain.tool_policy import ToolPolicy\n"
        "from tests.services.results.preview.test_json_previews import ISSUES, LISTING, of\n"
        "value = {'result': ISSUES['items']}\n"
        "print(of(value, ToolPolicy(preview_tokens=500, fields=('**.id', '*.user')), LISTING))\n"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(seen) == 1


def test_a_large_result_is_not_counted_again_and_again() -> None:
    counter = Thirds()
    preview_result([], ISSUES, ToolPolicy(preview_tokens=1000), counter)
    assert counter.characters < 20_000
