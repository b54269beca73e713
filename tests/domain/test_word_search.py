"""Words in a message: what counts as said, and what is shown of it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from cwm.domain.errors import CwmError, InvalidParameterError
from cwm.domain.session import SessionMark
from cwm.domain.word_search import SearchMark, Words

CALL = {"id": "c", "type": "function", "function": {"name": "read_file", "arguments": '{"path": "Notes.md"}'}}
PARTS = [{"type": "text", "text": "Look at"}, {"type": "image_url", "image_url": {"url": "data:xyz"}}]


@pytest.mark.parametrize(
    ("query", "content", "is_there"),
    [
        ("number", {"content": "The NUMBER is 4711."}, True),
        ("4711 THE", {"content": "The number is 4711."}, True),
        ("4711 a-word", {"content": "The number is 4711."}, False),
        ("umb", {"content": "The number"}, True),
        ("straße", {"content": "STRASSE"}, True),
        ("größe", {"content": "GRÖSSE"}, True),
        ("look", {"content": PARTS}, True),
        ("xyz", {"content": PARTS}, False),
        ("read_file notes.md", {"content": None, "tool_calls": [CALL]}, True),
        ("user", {"role": "user", "content": "nothing"}, False),
        ("a", {}, False),
        ("a", {"content": 3, "tool_calls": [3, {"function": 3}]}, False),
    ],
)
def test_a_message_has_the_words_or_not(query: str, content: dict[str, Any], is_there: bool) -> None:
    words = Words.parse(query)
    assert (words.excerpt(content) is not None) is is_there
    assert words.may_be_in(json.dumps(content).encode()) or not is_there


def test_an_excerpt_is_what_stands_around_the_first_word() -> None:
    text = f"{'before ' * 50}here it is{' after' * 50}"
    excerpt = Words.parse("HERE is").excerpt({"content": text})
    assert excerpt is not None
    assert excerpt.startswith("…")
    assert "before here it is after" in excerpt
    assert excerpt.endswith("…")
    assert len(excerpt) == 242
    assert Words.parse("short").excerpt({"content": "It is short."}) == "It is short."


@pytest.mark.parametrize("query", ["", "  ", "w " * 9, "w" * 257])
def test_a_query_has_some_words_and_not_too_many(query: str) -> None:
    with pytest.raises(InvalidParameterError):
        Words.parse(query)


def test_a_mark_is_read_as_it_was_written_and_nothing_else_is() -> None:
    mark = SearchMark(SessionMark(datetime(2026, 1, 2, 3, 4, 5, 6, UTC), "s-1"), 7, 2)
    assert SearchMark.parse(str(mark)) == mark
    for wrong in ("", "a/b/c/d", "2026-01-01/s/1", "2026-01-01/s/x/1", "2026-01-01/../1/1"):
        with pytest.raises(CwmError):
            SearchMark.parse(wrong)
