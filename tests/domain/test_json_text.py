"""JSON in pieces, against JSON at once."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cwm.domain import json_text as of
from cwm.domain.json_text import json_text

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
