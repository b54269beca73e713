"""Previews of whole tool results: texts, structured content, images, links, and many of them."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cwm.domain.preview import Omission, Preview, Unit
from cwm.domain.tool_policy import PreviewKind, ToolPolicy
from cwm.services.results.preview.result import preview_result
from tests.services.results.preview.test_json_previews import ISSUES, LISTING
from tests.services.results.preview.values import LETTERS, LONG_TEXT, Thirds

POLICY = ToolPolicy(preview_tokens=400)
STORY = "It was a dark night, and the wind blew. " * 2000
ITEMS = st.one_of(
    (LONG_TEXT | st.text(LETTERS)).map(lambda text: {"type": "text", "text": text}),
    st.binary(max_size=900).map(
        lambda data: {"type": "image", "data": _encoded(data), "mimeType": "image/png"}
    ),
    st.binary(max_size=900).map(
        lambda data: {"type": "audio", "data": _encoded(data), "mimeType": "audio/wav"}
    ),
    LONG_TEXT.map(lambda text: {"type": "resource", "resource": {"uri": "file:///a.txt", "text": text}}),
    LONG_TEXT.map(
        lambda text: {"type": "resource_link", "uri": "file:///b", "name": "b", "description": text}
    ),
)


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def of(*content: dict[str, Any], structured: Any = None, policy: ToolPolicy = POLICY, **more: Any) -> Preview:
    return preview_result(content, structured, policy, Thirds(), **more)


@given(st.lists(ITEMS, max_size=30), st.integers(150, 2000), st.sampled_from(PreviewKind))
def test_the_parts_of_a_result_share_its_budget(
    content: list[dict[str, Any]], budget: int, kind: PreviewKind
) -> None:
    preview = of(*content, policy=ToolPolicy(preview_tokens=budget, preview=kind))
    delivered = 0
    for item in preview.content:
        if (data := item.get("data")) is not None:
            delivered += min(len(data) * 3 // 4, 1600 if item["type"] == "image" else len(data))
            continue
        text = item.get("resource", item).get("text")
        text = text if text is not None else json.dumps(item, ensure_ascii=False, separators=(",", ":"))
        delivered += Thirds().count(text)
    assert delivered == preview.account.tokens <= budget
    assert bool(preview.account.omissions) == (list(preview.content) != content)


def test_a_result_that_fits_stays_what_it_is() -> None:
    item = {"type": "text", "text": ' {"a" :1}\n', "annotations": {"priority": 1}}
    preview = of(item, structured={"other": [1, 2]})
    assert list(preview.content) == [item]
    assert preview.structured == {"other": [1, 2]}
    assert preview.account.line == "Shown: all of it."


def test_a_text_that_says_the_same_as_the_structured_content_shows_the_same_preview() -> None:
    preview = of({"type": "text", "text": json.dumps(ISSUES, indent=2)}, structured=ISSUES)
    assert json.loads(preview.content[0]["text"]) == preview.structured
    assert preview.account.tokens <= 400


def test_a_list_that_was_wrapped_for_the_structured_content_shows_the_same_preview() -> None:
    text = {"type": "text", "text": json.dumps(ISSUES["items"])}
    preview = of(text, structured={"result": ISSUES["items"]}, schema=LISTING)
    assert json.loads(preview.content[0]["text"]) == preview.structured["result"]


def test_a_text_that_was_wrapped_for_the_structured_content_shows_the_same_preview() -> None:
    preview = of({"type": "text", "text": STORY}, structured={"content": STORY})
    assert preview.structured == {"content": preview.content[0]["text"]}
    assert preview.account.tokens <= 400


def test_a_wrapped_text_that_is_json_stays_json() -> None:
    text = json.dumps(ISSUES)
    preview = of({"type": "text", "text": text}, structured={"result": text}, schema={"required": ["result"]})
    assert preview.structured["result"] == preview.content[0]["text"]
    assert json.loads(preview.structured["result"])["total_count"] == 300
    assert preview.account.tokens <= 400


@pytest.mark.parametrize("kind", [PreviewKind.AUTO, PreviewKind.TAIL])
def test_texts_that_are_one_by_one_the_items_of_the_structured_content_show_the_same_preview(
    kind: PreviewKind,
) -> None:
    issues = ISSUES["items"]
    texts = [{"type": "text", "text": json.dumps(issue, indent=2)} for issue in issues]  # type: ignore[attr-defined]
    policy = ToolPolicy(preview_tokens=1000, preview=kind)
    preview = of(*texts, structured={"result": issues}, schema=LISTING, policy=policy)
    assert [json.loads(item["text"]) for item in preview.content] == preview.structured["result"]
    assert preview.account.omissions[0] == Omission("result", Unit.ITEMS, len(preview.content), 300)
    assert preview.account.tokens <= 1000


def test_structured_content_and_a_text_that_says_something_else_share_the_budget() -> None:
    preview = of({"type": "text", "text": STORY}, structured=ISSUES)
    assert preview.account.tokens <= 400
    assert preview.content[0]["text"].endswith(" more words]")
    assert len(preview.structured["items"]) >= 1
    assert any(omission.path == "content[0]" for omission in preview.account.omissions)


def test_an_image_over_the_budget_is_named_instead() -> None:
    image = {"type": "image", "data": _encoded(bytes(60_000)), "mimeType": "image/png"}
    preview = of({"type": "text", "text": "Here it is."}, image)
    assert preview.content[1] == {"type": "text", "text": "[image/png, 60,000 bytes: not shown]"}
    assert preview.account.omissions == (Omission("content[1]", Unit.BYTES, 0, 60_000, names=("image/png",)),)
    assert preview.account.line == "Shown: content[1] 0 of 60,000 bytes (image/png)."


def test_a_picture_takes_what_models_see_of_it() -> None:
    image = {"type": "image", "data": _encoded(bytes(60_000)), "mimeType": "image/png"}
    preview = of({"type": "text", "text": STORY}, image, policy=ToolPolicy(preview_tokens=4000))
    assert preview.content[1] == image
    assert preview.account.tokens <= 4000


def test_an_embedded_file_over_the_budget_is_named_with_its_uri() -> None:
    resource = {"uri": "file:///report.pdf", "mimeType": "application/pdf", "blob": _encoded(bytes(9_001))}
    preview = of({"type": "resource", "resource": resource})
    assert preview.content[0]["text"] == "[application/pdf, 9,001 bytes of file:///report.pdf: not shown]"


def test_an_embedded_text_stays_a_resource() -> None:
    preview = of(
        {"type": "resource", "resource": {"uri": "file:///a.md", "mimeType": "text/markdown", "text": STORY}}
    )
    resource = preview.content[0]["resource"]
    assert resource["uri"] == "file:///a.md"
    assert resource["text"].endswith(" more words]")


def test_a_link_keeps_its_name_and_uri() -> None:
    link = {"type": "resource_link", "uri": "file:///" + "d/" * 60, "name": "report", "description": STORY}
    shown = of(link).content[0]
    assert (shown["type"], shown["uri"], shown["name"]) == (link["type"], link["uri"], link["name"])
    assert len(shown.get("description", "")) < 2000


def test_of_very_many_parts_the_first_are_shown_and_all_are_counted() -> None:
    preview = of(*({"type": "text", "text": f"Line {n} of it."} for n in range(4000)))
    assert [item["text"] for item in preview.content[:2]] == ["Line 0 of it.", "Line 1 of it."]
    assert 50 < len(preview.content) < 200
    assert preview.account.line == f"Shown: {len(preview.content)} of 4,000 parts."


def test_of_the_parts_of_a_tail_the_last_are_shown() -> None:
    policy = ToolPolicy(preview_tokens=100, preview=PreviewKind.TAIL)
    preview = of(*({"type": "text", "text": f"Line {n} of it."} for n in range(4000)), policy=policy)
    assert preview.content[-1]["text"] == "Line 3999 of it."


def test_parts_of_one_kind_are_accounted_for_together() -> None:
    preview = of(*({"type": "text", "text": json.dumps(issue)} for issue in ISSUES["items"]))  # type: ignore[attr-defined]
    paths = [omission.path for omission in preview.account.omissions]
    assert paths[:2] == ["", "content[*]"]
    assert len(paths) == len(set(paths))


def test_a_json_text_with_half_a_character_in_it_can_be_sent() -> None:
    preview = of({"type": "text", "text": '{"a": "\\ud800", "b": "' + "x" * 9000 + '"}'})
    preview.content[0]["text"].encode()


def test_what_only_looks_like_json_is_a_text() -> None:
    for text in ('{"a": NaN, "b": "' + "x y " * 900 + '"}', "[" * 100_000, "{ not json at all " * 900):
        assert of({"type": "text", "text": text}).account.tokens <= 400
