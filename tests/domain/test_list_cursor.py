from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cwm.domain.cursor import CursorFault
from cwm.domain.errors import InvalidParameterError
from cwm.domain.list_cursor import cursor_of, mark_of
from cwm.domain.window import WindowMark, WindowQuery, WindowSort

_AT = datetime(2026, 3, 1, 12, 30, 15, 123456, tzinfo=UTC)
_MARKS: dict[WindowSort, WindowMark] = {
    WindowSort.NAME: WindowMark("w-1", "w-1"),
    WindowSort.CREATED_AT: WindowMark(_AT, "w-1"),
    WindowSort.TOKEN_COUNT: WindowMark(4096, "w-1"),
    WindowSort.SIZE: WindowMark(2**40, "w-1"),
}


def _refused(cursor: str, query: WindowQuery, tenant: str = "acme") -> str:
    with pytest.raises(InvalidParameterError) as refused:
        mark_of(cursor, tenant, query)
    assert refused.value.context["field"] == "cursor"
    return str(refused.value.context["reason"])


@pytest.mark.parametrize("sort", WindowSort)
def test_a_cursor_says_where_it_was_made(sort: WindowSort) -> None:
    query = WindowQuery(sort_by=sort, tags=("red",), search="Straße")
    cursor = cursor_of("acme", query, _MARKS[sort])
    assert mark_of(cursor, "acme", replace(query, limit=7)) == _MARKS[sort]


@pytest.mark.parametrize(
    "change",
    [
        {"tags": ("blue",)},
        {"model": "tiny"},
        {"created_after": _AT},
        {"created_before": _AT},
        {"search": "x"},
        {"descending": False},
        {"sort_by": WindowSort.SIZE},
    ],
)
def test_a_cursor_is_good_for_its_own_query_and_tenant_only(change: dict[str, Any]) -> None:
    query = WindowQuery(sort_by=WindowSort.TOKEN_COUNT)
    cursor = cursor_of("acme", query, _MARKS[WindowSort.TOKEN_COUNT])
    assert _refused(cursor, replace(query, **change)) == CursorFault.FOREIGN
    assert _refused(cursor, query, "other") == CursorFault.FOREIGN


@pytest.mark.parametrize("sort", WindowSort)
@pytest.mark.parametrize(
    "value", [None, True, -1, 2**63, 1.5, "", "a b", "é", "0001-01-01T00:00:00+14:00", [], {}, "\ud800"]
)
def test_a_place_that_no_window_can_have_is_refused(sort: WindowSort, value: Any) -> None:
    query = WindowQuery(sort_by=sort)
    whole = json.loads(_decoded(cursor_of("acme", query, _MARKS[sort])))
    whole[2] = value
    assert _refused(urlsafe_b64encode(json.dumps(whole).encode()).decode(), query) == CursorFault.MALFORMED


@given(
    st.one_of(st.text(max_size=200), st.binary(max_size=100).map(lambda raw: urlsafe_b64encode(raw).decode()))
)
def test_anything_else_is_refused_as_malformed(cursor: str) -> None:
    assert _refused(cursor, WindowQuery()) == CursorFault.MALFORMED


@pytest.mark.parametrize(
    "told", ["[]", "null", "[1,2,3,4]", "[" * 300, '{"a":1}', "[1,2,3,4,5]", "[2,null,1,1]"]
)
def test_json_of_another_shape_is_refused(told: str) -> None:
    assert _refused(urlsafe_b64encode(told.encode()).decode(), WindowQuery()) in set(CursorFault)


def _decoded(cursor: str) -> bytes:
    return urlsafe_b64decode(cursor)
