"""What of an answer reaches a model, and that its parts hold all of it."""

from __future__ import annotations

import base64
import json
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cwm.domain.json_text import compact_json
from cwm.domain.results import ABOUT_TYPE, Part, PartKind
from cwm.services.results.answers import ToolAnswer, _counted, count, parts_of


class Characters:
    """Counts what is easy to count by hand."""

    def count(self, text: str) -> int:
        return len(text)


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


async def tokens(answer: ToolAnswer) -> int:
    return (await count(answer, Characters())).tokens


async def test_texts_and_texts_of_resources_are_counted() -> None:
    resource = {"type": "resource", "resource": {"uri": "a:b", "text": "abc"}}
    assert await tokens(ToolAnswer([text("12345"), resource])) == 8


@pytest.mark.parametrize(
    ("said", "structured"),
    [
        ('{"a": 1}', {"a": 1}),
        ("long text", {"content": "long text"}),
        ("[1, 2]", {"result": [1, 2]}),
        ("5", {"result": 5}),
    ],
)
async def test_structured_content_that_a_text_says_is_neither_counted_nor_kept_again(
    said: str, structured: dict[str, Any]
) -> None:
    answer = ToolAnswer([text(said)], structured)
    assert await tokens(answer) == len(said)
    assert [part.body.decode() for part in parts_of(answer)] == [said]


@pytest.mark.parametrize(
    ("said", "structured"),
    [
        ("done", {"a": 1}),
        ("true", {"result": 1}),
        ('{"a": 1}', {"a": 1, "b": 2}),
        ("a", {"x": "a", "y": "a"}),
    ],
)
async def test_structured_content_that_says_more_is_counted_and_kept(
    said: str, structured: dict[str, Any]
) -> None:
    answer = ToolAnswer([text(said)], structured)
    assert await tokens(answer) > len(said)
    assert json.loads(parts_of(answer)[-1].body) == structured


async def test_a_picture_counts_as_what_models_see_of_it_and_other_bytes_as_text() -> None:
    data = base64.b64encode(b"x" * 300_000).decode()
    picture = {"type": "image", "data": data, "mimeType": "image/png"}
    blob = {"type": "resource", "resource": {"uri": "a:b", "blob": data}}
    assert await tokens(ToolAnswer([picture])) == 1_600
    assert await tokens(ToolAnswer([blob])) == 300_000


@pytest.mark.parametrize(
    "answer",
    [
        ToolAnswer([text("x" * 60_000)] * 2),
        ToolAnswer([{"type": "resource", "resource": {"uri": "a:b", "text": "x" * 60_000}}] * 2),
        ToolAnswer([{"type": "resource_link", "uri": "a:b", "name": "n", "description": "x" * 200_000}]),
        ToolAnswer([text("ok")], {"rows": [{"id": n, "name": "x" * 50} for n in range(3_000)]}),
        ToolAnswer([text("ok")], {"rows": [[n] for n in range(50_000)]}),
        ToolAnswer([text("ok")], {"x" * 200_000: 1}),
    ],
    ids=["texts", "embedded resources", "a link", "structured content", "numbers", "a key"],
)
async def test_what_is_long_holds_nobody_up_while_it_is_counted(answer: ToolAnswer) -> None:
    counted_in = set()

    class Counting(Characters):
        def count(self, text: str) -> int:
            counted_in.add(threading.get_ident())
            return super().count(text)

    await count(answer, Counting())
    assert threading.get_ident() not in counted_in
    counted_in.clear()
    await count(ToolAnswer([text("ok")], {"rows": [{"id": 1}]}), Counting())
    assert counted_in == {threading.get_ident()}


@pytest.mark.parametrize(
    "spell",
    [
        lambda rows: _counted(ToolAnswer([], rows), Characters()),
        lambda rows: parts_of(ToolAnswer([], rows)),
        compact_json,
    ],
    ids=["to be counted", "to be kept", "to be shown"],
)
def test_what_is_long_is_spelled_in_pieces_between_which_others_run(spell: Callable[[Any], object]) -> None:
    """One call that spells all of it lets no other thread run until it ends."""
    pieces, encode = 0, json.JSONEncoder.encode.__code__

    def entered(frame: FrameType, event: str, _: object) -> None:
        nonlocal pieces
        pieces += event == "call" and frame.f_code is encode

    sys.setprofile(entered)
    try:
        spell({"rows": [{"id": number, "name": "x" * 50} for number in range(30_000)]})
    finally:
        sys.setprofile(None)
    assert pieces > 10


async def test_a_long_text_is_counted_as_a_short_one_is() -> None:
    assert await tokens(ToolAnswer([text("x" * 250_000)])) == 250_000


TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
ITEMS = st.one_of(
    TEXTS.map(text),
    st.recursive(st.integers() | TEXTS, lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner))
    .map(json.dumps)
    .map(text),
    st.binary().map(
        lambda raw: {"type": "image", "data": base64.b64encode(raw).decode(), "mimeType": "image/png"}
    ),
    TEXTS.map(lambda data: {"type": "audio", "data": data, "mimeType": "audio/wav"}),
    TEXTS.map(lambda said: {"type": "resource", "resource": {"uri": "a:b", "text": said}}),
    st.binary().map(
        lambda raw: {
            "type": "resource",
            "resource": {"uri": "a:encoded", "mimeType": "a/b", "blob": base64.b64encode(raw).decode()},
        }
    ),
    TEXTS.map(lambda said: {**text(said), "annotations": {"audience": ["user"]}, "_meta": {"é": 1}}),
    TEXTS.map(lambda name: {"type": "resource_link", "uri": "a:b", "name": name}),
)


def made_again(part: Part, shell: dict[str, Any]) -> dict[str, Any]:
    body = base64.b64encode(part.body).decode() if part.kind is PartKind.BINARY else part.body.decode()
    match shell:
        case {"type": "resource_link"}:
            return dict(json.loads(body))
        case {"type": "resource", "resource": resource}:
            name = "blob" if "encoded" in resource["uri"] else "text"
            return {**shell, "resource": {**resource, name: body}}
        case {"type": "text"}:
            return {**shell, "text": body}
        case _:
            return {**shell, "data": body}


@given(st.lists(ITEMS, max_size=8), st.sampled_from([{}, {"example.org/a": [1, "é"]}]))
def test_every_item_can_be_made_again_from_its_part_and_what_is_said_about_it(
    items: list[dict[str, Any]], meta: dict[str, Any]
) -> None:
    parts = parts_of(ToolAnswer(items, meta=meta))
    about: dict[str, Any] = {}
    if len(parts) > len(items):
        assert parts[-1].media_type == ABOUT_TYPE
        about = json.loads(parts.pop().body)
    assert about.get("_meta", {}) == meta
    if "content" in about:
        shells = about["content"]
    else:
        shells = [
            {
                "type": item["type"],
                **({"mimeType": part.media_type.removesuffix(";base64")} if "data" in item else {}),
            }
            for item, part in zip(items, parts, strict=True)
        ]
    assert [made_again(*each) for each in zip(parts, shells, strict=True)] == items


def test_what_a_list_or_very_many_items_say_about_themselves_is_kept() -> None:
    meta = {"example.org/a": 1}
    rows = [{"id": 1}, {"id": 2}]
    listed = ToolAnswer(
        [{**text(json.dumps(row)), "annotations": {"priority": 1.0}} for row in rows],
        {"result": rows},
        meta=meta,
    )
    many = ToolAnswer([text("a")] * 1_000, meta=meta)
    assert json.loads(parts_of(listed)[1].body) == listed.content
    for answer in (listed, many):
        assert json.loads(parts_of(answer)[-1].body) == {"_meta": meta}


def test_only_objects_and_arrays_are_json_parts() -> None:
    kinds = [part.kind for part in parts_of(ToolAnswer([text(' {"a": 1}'), text("[1"), text("5"), text("")]))]
    assert kinds == [PartKind.JSON, PartKind.TEXT, PartKind.TEXT, PartKind.TEXT]


async def test_a_list_that_is_there_twice_is_counted_and_kept_once() -> None:
    rows = [{"id": number, "name": f"é {number}"} for number in range(100)]
    answer = ToolAnswer(
        [text(json.dumps(row, ensure_ascii=False, separators=(",", ":"))) for row in rows], {"result": rows}
    )
    assert await tokens(answer) == sum(len(item["text"]) for item in answer.content)
    (part,) = parts_of(answer)
    assert json.loads(part.body) == {"result": rows}


def test_a_list_whose_texts_are_spelled_otherwise_is_kept_both_ways() -> None:
    answer = ToolAnswer([text('{"a": 1}'), text('{ "a": 2 }')], {"result": [{"a": 1}, {"a": 2}]})
    listed, spelled = parts_of(answer)
    assert json.loads(listed.body) == answer.structured
    assert json.loads(spelled.body) == answer.content


def test_very_many_items_are_one_part() -> None:
    answer = ToolAnswer([text(str(number)) for number in range(1_000)], {"a": 1})
    (part,) = parts_of(answer)
    assert json.loads(part.body) == {"content": answer.content, "structuredContent": {"a": 1}}
