"""What JSON takes in memory is known before it is parsed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cwm.domain.errors import StoredTooLargeError
from cwm.domain.weight import NODE_BYTES, Room, compact_ascii, weight_of


def values_in(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(values_in, inner))


@pytest.mark.parametrize(
    "value",
    [
        "a text",
        7,
        ["[{,", '"', "\\", '\\"', '\\\\"[', "\n,\t"],
        {"a,b": [1, [2, {"c": "}]"}]], '"': None},
        {"role": "user", "content": [{"type": "text", "text": ""}] * 1000},
    ],
)
def test_each_value_weighs_beside_its_letters(value: Any) -> None:
    text = compact_ascii(value)
    assert weight_of(text) == len(text) + NODE_BYTES * values_in(value)


def test_a_long_value_is_written_piece_by_piece_as_any_other() -> None:
    value = {"content": [{"type": "text", "text": "\ud800 été"}] * 20_000, "n": 1.5}
    assert compact_ascii(value) == json.dumps(value, separators=(",", ":")).encode()


def test_what_looks_like_structure_in_a_text_weighs_nothing_more() -> None:
    code = compact_ascii("f({x: [1, 2]}, [3, 4])\n" * 1000)
    assert weight_of(code) == len(code) + NODE_BYTES


def test_a_room_holds_so_much_together() -> None:
    room = Room(10)
    room.take(6)
    assert (room.has(4), room.has(5), room.taken) == (True, False, 6)
    with pytest.raises(StoredTooLargeError):
        room.take(5)
