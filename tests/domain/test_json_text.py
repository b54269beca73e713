"""JSON in pieces and on lines, against JSON at once."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cwm.domain import json_text as of
from cwm.domain.json_text import json_text, laid_out

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
)


@given(VALUES)
def test_it_is_to_the_letter_what_is_spelled_at_once(value: Any) -> None:
    with pytest.MonkeyPatch.context() as small:
        small.setattr(of, "_CHARS_AT_ONCE", 20)
        for separators in ((", ", ": "), (",", ":")):
            assert json_text(value, separators) == json.dumps(
                value, ensure_ascii=False, separators=separators
            )


@given(VALUES.filter(lambda value: not isinstance(value, float)))
def test_json_is_laid_out_as_with_an_indent(value: Any) -> None:
    document = json.dumps(value, allow_nan=True)
    assert laid_out(document) == json.dumps(json.loads(document), indent=2, ensure_ascii=False)


def test_numbers_and_doubled_names_are_laid_out_as_they_were_written() -> None:
    document = '{"a":1.10, "a":1e3,"b":[ 9007199254740993,-0.0,1E400,{}],\n"\\u00e9\\"[,":"x: 1"}'
    assert laid_out(document).splitlines() == [
        "{",
        '  "a": 1.10,',
        '  "a": 1e3,',
        '  "b": [',
        "    9007199254740993,",
        "    -0.0,",
        "    1E400,",
        "    {}",
        "  ],",
        '  "é\\"[,": "x: 1"',
        "}",
    ]
