"""Paths of a projection."""

from __future__ import annotations

import pytest

from cwm.domain.field_paths import parse_path


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("id", [("id", False)]),
        ("a.b", [("a", False), ("b", False)]),
        ("items[*].name", [("items", False), ("name", False)]),
        ("[*].name", [("name", False)]),
        ("$.a", [("a", False)]),
        ("*.size", [("*", True), ("size", False)]),
        ("**.id", [("**", True), ("id", False)]),
        ('"a.b"."*"', [("a.b", False), ("*", False)]),
        ("@type.größe-1", [("@type", False), ("größe-1", False)]),
    ],
)
def test_a_path_is_read_as_its_steps(text: str, steps: list[tuple[str, bool]]) -> None:
    assert list(parse_path(text)) == steps


@pytest.mark.parametrize("text", ["", ".", ".a", "a..b", "a.", "items[0]", "a[", 'a."b', "[*]", "a***"])
def test_a_path_that_can_not_be_read_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="path"):
        parse_path(text)
