"""A cursor goes on where it was made for, for whom it was made, until it expires; anything else is refused."""

from __future__ import annotations

import base64
import hmac
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cwm.domain.cursor import CURSOR_CHARS, CursorFault, Cursors, Position, snapshot_of
from cwm.domain.errors import InvalidParameterError
from cwm.domain.principal import Principal
from cwm.domain.results import PartKind, StoredPart, StoredResult, handle_of, number_of

NOW = datetime(2026, 3, 1, tzinfo=UTC)
LATER = NOW + timedelta(minutes=10)
ANN, BOB = Principal("acme", "ann"), Principal("acme", "bob")
CURSORS = Cursors([b"a secret"])
PART = StoredPart(PartKind.TEXT, "text/plain", "d" * 64, 100)
RESULT = StoredResult(
    "acme", handle_of(bytes(16)), "ann", "docs_read", (PART,), NOW, LATER, arguments_digest="a1"
)
SNAPSHOT = snapshot_of(RESULT, PART)
POSITION = Position(RESULT.handle, 0, 8_000)

positions = st.builds(
    Position,
    st.binary(min_size=16, max_size=16).map(handle_of),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**64 - 1),
)


def made(**given: Any) -> str:
    return CURSORS.make(
        given.get("position", POSITION),
        given.get("reader", ANN),
        given.get("snapshot", SNAPSHOT),
        given.get("expires_at", LATER),
    )


def fault_of(cursor: str, reader: Principal = ANN, at: datetime = NOW, snapshot: bytes = SNAPSHOT) -> str:
    with pytest.raises(InvalidParameterError) as refused:
        CURSORS.read(cursor, reader, at).require(snapshot)
    assert refused.value.code == "CWM-1003"
    assert refused.value.context["field"] == "cursor"
    return str(refused.value.context["reason"])


@given(positions)
def test_a_cursor_says_the_position_it_was_made_for(position: Position) -> None:
    cursor = made(position=position)
    assert CURSORS.read(cursor, ANN, NOW).require(SNAPSHOT) == position
    assert len(cursor) == CURSOR_CHARS < 200


@given(st.integers(0, 90 * 8 - 1))
def test_a_flipped_bit_is_malformed_wherever_it_is(bit: int) -> None:
    raw = bytearray(base64.urlsafe_b64decode(made()))
    raw[bit // 8] ^= 1 << bit % 8
    assert fault_of(base64.urlsafe_b64encode(raw).decode()) == CursorFault.MALFORMED


@given(st.integers(0, CURSOR_CHARS - 1), st.characters())
def test_another_character_is_malformed_wherever_it_stands(at: int, character: str) -> None:
    cursor = made()
    changed = cursor[:at] + character + cursor[at + 1 :]
    if changed != cursor:
        assert fault_of(changed) == CursorFault.MALFORMED


@given(st.text(max_size=2 * CURSOR_CHARS))
def test_any_text_is_malformed(text: str) -> None:
    assert fault_of(text) == CursorFault.MALFORMED


@given(positions, positions, st.integers(1, 89))
def test_halves_of_two_cursors_make_none(one: Position, other: Position, at: int) -> None:
    first, second = (base64.urlsafe_b64decode(made(position=each)) for each in (one, other))
    swapped = first[:at] + second[at:]
    if swapped not in {first, second}:
        assert fault_of(base64.urlsafe_b64encode(swapped).decode()) == CursorFault.MALFORMED


@pytest.mark.parametrize("spelled", ["{0}=", "{0}\n", " {0}", "{0}{0}", "{1}", ""])
def test_a_cursor_has_one_spelling(spelled: str) -> None:
    cursor = made()
    assert fault_of(spelled.format(cursor, cursor[:-1])) == CursorFault.MALFORMED


def test_the_letters_of_plain_base64_are_not_ours() -> None:
    for number in range(64):
        cursor = made(position=replace(POSITION, offset=number))
        plain = cursor.replace("-", "+").replace("_", "/")
        if plain != cursor:
            assert fault_of(plain) == CursorFault.MALFORMED


def test_a_cursor_is_good_until_it_expires() -> None:
    cursor = made()
    assert CURSORS.read(cursor, ANN, LATER - timedelta(seconds=1)).position == POSITION
    assert fault_of(cursor, at=LATER) == CursorFault.EXPIRED


@pytest.mark.parametrize(
    "reader", [BOB, Principal("other", "ann"), Principal("acm", "eann"), Principal("", "")]
)
def test_a_cursor_is_good_for_its_reader_alone(reader: Principal) -> None:
    assert fault_of(made(), reader) == CursorFault.FOREIGN
    assert fault_of(made(), reader, at=LATER) == CursorFault.FOREIGN


@pytest.mark.parametrize(
    "snapshot",
    [
        snapshot_of(replace(RESULT, tool="docs_list"), PART),
        snapshot_of(replace(RESULT, arguments_digest="a2"), PART),
        snapshot_of(RESULT, replace(PART, digest="e" * 64)),
        snapshot_of(RESULT, PART, "a query"),
        snapshot_of(replace(RESULT, tool="docs_reada1", arguments_digest=""), PART),
    ],
    ids=["tool", "arguments", "content", "query", "moved border"],
)
def test_a_cursor_is_good_for_its_snapshot_alone(snapshot: bytes) -> None:
    assert fault_of(made(), snapshot=snapshot) == CursorFault.FOREIGN


def test_a_cursor_of_another_secret_is_malformed() -> None:
    cursor = Cursors([b"another secret"]).make(POSITION, ANN, SNAPSHOT, LATER)
    assert fault_of(cursor) == CursorFault.MALFORMED


def test_after_a_change_of_the_secret_old_cursors_are_good_and_new_ones_are_signed_with_the_new() -> None:
    old, both, new = Cursors([b"old"]), Cursors([b"new", b"old"]), Cursors([b"new"])
    assert both.read(old.make(POSITION, ANN, SNAPSHOT, LATER), ANN, NOW).position == POSITION
    assert new.read(both.make(POSITION, ANN, SNAPSHOT, LATER), ANN, NOW).position == POSITION
    with pytest.raises(InvalidParameterError):
        new.read(old.make(POSITION, ANN, SNAPSHOT, LATER), ANN, NOW)


@given(st.binary(min_size=16, max_size=16))
def test_a_handle_spells_its_number(number: bytes) -> None:
    handle = handle_of(number)
    assert number_of(handle) == number
    assert len(handle) == 24


@pytest.mark.parametrize(
    "text",
    ["", "r_", "r_" + "0" * 21, "r_" + "0" * 23, "x_" + "0" * 22, "r_" + "z" * 22, "r_" + "٣" * 22, "0" * 24],
)
def test_what_is_no_handle_has_no_number(text: str) -> None:
    assert number_of(text) is None


def test_all_of_a_signature_is_compared_in_constant_time_whatever_differs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared: list[tuple[bytes, bytes]] = []
    compare = hmac.compare_digest

    def noted(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return compare(one, other)

    monkeypatch.setattr("cwm.domain.cursor.hmac.compare_digest", noted)
    raw = base64.urlsafe_b64decode(made())
    signature = raw[-32:]
    for at in (-32, -16, -1):
        changed = bytearray(raw)
        changed[at] ^= 1
        compared.clear()
        assert fault_of(base64.urlsafe_b64encode(changed).decode()) == CursorFault.MALFORMED
        assert compared == [(signature, bytes(changed[-32:]))]
    compared.clear()
    CURSORS.read(made(), ANN, NOW).require(SNAPSHOT)
    assert [len(one) == len(other) for one, other in compared] == [True, True, True]
    assert [one for one, _ in compared] == [other for _, other in compared]
