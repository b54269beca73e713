from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cwm.domain.errors import InvalidParameterError
from cwm.domain.json_pointer import value_at

# RFC 6901, section 5.
DOCUMENT: dict[str, Any] = {
    "foo": ["bar", "baz"],
    "": 0,
    "a/b": 1,
    "c%d": 2,
    "e^f": 3,
    "g|h": 4,
    "i\\j": 5,
    'k"l': 6,
    " ": 7,
    "m~n": 8,
}


@pytest.mark.parametrize(
    ("pointer", "value"),
    [
        ("", DOCUMENT),
        ("/foo", ["bar", "baz"]),
        ("/foo/0", "bar"),
        ("/", 0),
        ("/a~1b", 1),
        ("/c%d", 2),
        ("/e^f", 3),
        ("/g|h", 4),
        ("/i\\j", 5),
        ('/k"l', 6),
        ("/ ", 7),
        ("/m~0n", 8),
    ],
)
def test_the_examples_of_the_standard_hold(pointer: str, value: Any) -> None:
    assert value_at(DOCUMENT, pointer) == value


@pytest.mark.parametrize(
    ("pointer", "why"),
    [
        ("foo", "starts with '/'"),
        ("/~", "'~0' and '~1'"),
        ("/~2", "'~0' and '~1'"),
        ("/nothing", "no field 'nothing'"),
        ("/foo/2", "2 items and no '2'"),
        ("/foo/-", "no '-'"),
        ("/foo/01", "no '01'"),
        ("/foo/-1", "no '-1'"),
        ("/foo/٣", "2 items"),
        ("/foo/0/x", "step 3"),
        ("/" + "x" * 500, "…"),
        ("/foo/" + "9" * 5_000, "2 items"),
    ],
)
def test_a_pointer_that_leads_nowhere_says_where_it_ends(pointer: str, why: str) -> None:
    with pytest.raises(InvalidParameterError) as refused:
        value_at(DOCUMENT, pointer)
    assert why in refused.value.message
    assert len(refused.value.message) < 250


@given(st.lists(st.text()), st.integers())
def test_any_name_can_be_pointed_at(names: list[str], value: int) -> None:
    document: Any = value
    for name in reversed(names):
        document = {name: document}
    pointer = "".join("/" + name.replace("~", "~0").replace("/", "~1") for name in names)
    assert value_at(document, pointer) == value
