from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cwm.domain.cursor import CursorFault, Cursors, Position
from cwm.domain.errors import InvalidParameterError
from cwm.domain.list_cursor import ListCursors
from cwm.domain.principal import Principal
from cwm.domain.results import HANDLE_BYTES, handle_of
from cwm.domain.window import WindowMark, WindowQuery, WindowSort

_AT = datetime(2026, 3, 1, 12, 30, 15, 123456, tzinfo=UTC)
_MARKS: dict[WindowSort, WindowMark] = {
    WindowSort.NAME: WindowMark("w-1", "w-1"),
    WindowSort.CREATED_AT: WindowMark(_AT, "w-1"),
    WindowSort.TOKEN_COUNT: WindowMark(4096, "w-1"),
    WindowSort.SIZE: WindowMark(2**40, "w-1"),
}


_READER = Principal("acme", "ann")
_CURSORS = ListCursors((b"a secret",))
_TTL = timedelta(minutes=10)


def _made(query: WindowQuery, mark: WindowMark | None = None) -> str:
    return _CURSORS.make(mark or _MARKS[query.sort_by], _READER, query, _AT + _TTL)


def _refused(cursor: str, query: WindowQuery, reader: Principal = _READER, now: datetime = _AT) -> str:
    with pytest.raises(InvalidParameterError) as refused:
        _CURSORS.read(cursor, reader, now).require(query)
    assert refused.value.context["field"] == "cursor"
    return str(refused.value.context["reason"])


@pytest.mark.parametrize("sort", WindowSort)
def test_a_cursor_says_where_it_was_made(sort: WindowSort) -> None:
    query = WindowQuery(sort_by=sort, tags=("red",), search="Straße")
    claim = _CURSORS.read(_made(query), _READER, _AT + _TTL - timedelta(seconds=1))
    assert claim.require(replace(query, limit=7)) == _MARKS[sort]


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
def test_a_cursor_is_good_for_its_own_query_only(change: dict[str, Any]) -> None:
    query = WindowQuery(sort_by=WindowSort.TOKEN_COUNT)
    assert _refused(_made(query), replace(query, **change)) == CursorFault.FOREIGN


@pytest.mark.parametrize("other", [Principal("other", "ann"), Principal("acme", "bob")])
def test_a_cursor_is_good_for_its_own_reader_only(other: Principal) -> None:
    assert _refused(_made(WindowQuery()), WindowQuery(), other) == CursorFault.FOREIGN


def test_a_cursor_expires() -> None:
    assert _refused(_made(WindowQuery()), WindowQuery(), now=_AT + _TTL) == CursorFault.EXPIRED


@given(st.data())
def test_a_cursor_of_which_one_bit_was_changed_is_refused(data: st.DataObject) -> None:
    raw = bytearray(urlsafe_b64decode(_made(WindowQuery())))
    at, bit = data.draw(st.integers(0, len(raw) - 1)), data.draw(st.integers(0, 7))
    raw[at] ^= 1 << bit
    assert _refused(urlsafe_b64encode(raw).decode(), WindowQuery()) == CursorFault.MALFORMED


def test_a_secret_can_be_replaced_and_another_signs_nothing() -> None:
    query = WindowQuery()
    later = ListCursors((b"a new secret", b"a secret"))
    assert later.read(_made(query), _READER, _AT).require(query) == _MARKS[query.sort_by]
    stranger = ListCursors((b"another",)).make(_MARKS[query.sort_by], _READER, query, _AT + _TTL)
    assert _refused(stranger, query) == CursorFault.MALFORMED


def test_a_cursor_into_a_result_is_none_of_a_list() -> None:
    result = Cursors((b"a secret",)).make(
        Position(handle_of(bytes(HANDLE_BYTES)), 0, 0), _READER, bytes(12), _AT + _TTL
    )
    assert _refused(result, WindowQuery()) == CursorFault.MALFORMED
    with pytest.raises(InvalidParameterError):
        Cursors((b"a secret",)).read(_made(WindowQuery()), _READER, _AT)


@pytest.mark.parametrize("sort", WindowSort)
@pytest.mark.parametrize(
    "value", [None, True, -1, 2**63, 1.5, "", "a b", "é", "0001-01-01T00:00:00+14:00", [], {}, "\ud800"]
)
def test_a_place_that_no_window_can_have_is_refused(sort: WindowSort, value: Any) -> None:
    query = WindowQuery(sort_by=sort)
    assert _refused(_made(query, WindowMark(value, "w-1")), query) == CursorFault.MALFORMED


@given(
    st.one_of(st.text(max_size=200), st.binary(max_size=100).map(lambda raw: urlsafe_b64encode(raw).decode()))
)
def test_anything_else_is_refused_as_malformed(cursor: str) -> None:
    assert _refused(cursor, WindowQuery()) == CursorFault.MALFORMED


@pytest.mark.parametrize(
    "told", ["[]", "null", "[1,2,3,4]", "[" * 300, '{"a":1}', "[1,2,3,4,5]", '[1,"0123456789abcdef",1,"w-1"]']
)
def test_json_that_nobody_signed_is_refused(told: str) -> None:
    assert _refused(urlsafe_b64encode(told.encode()).decode(), WindowQuery()) == CursorFault.MALFORMED
