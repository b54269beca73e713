from __future__ import annotations

from collections.abc import Callable

import pytest

from cwm.domain import names
from cwm.domain.errors import InvalidParameterError, InvalidSessionIdError, InvalidWindowNameError

_BAD = (
    "",
    " ",
    "a b",
    "../etc/passwd",
    "a/b",
    "a.b",
    "a\n",
    "\na",
    "a\x00b",
    "'; DROP TABLE windows; --",
    "$(rm -rf ~)",
    "\U0001f600",
    "Ünïcode",
    "٣",
    "a" * 10_240,
)

_REQUIRE: tuple[tuple[Callable[[str], object], int, type[Exception]], ...] = (
    (names.require_session_id, 64, InvalidSessionIdError),
    (names.require_window_name, 128, InvalidWindowNameError),
    (lambda tag: names.require_tags([tag]), 32, InvalidParameterError),
)


@pytest.mark.parametrize(("require", "longest", "refusal"), _REQUIRE)
def test_a_name_is_letters_digits_underscore_and_dash_up_to_its_limit(
    require: Callable[[str], object], longest: int, refusal: type[Exception]
) -> None:
    for good in ("a", "Z-9_", "-", "x" * longest):
        assert require(good) in (good, [good])
    for bad in (*_BAD, "x" * (longest + 1)):
        with pytest.raises(refusal):
            require(bad)


def test_a_refusal_never_repeats_what_was_sent() -> None:
    with pytest.raises(InvalidWindowNameError) as refused:
        names.require_window_name("my secret\x00")
    assert refused.value.as_dict() == {
        "code": "CWM-1002",
        "message": "A window name is 1 to 128 letters, digits, '_' or '-'.",
        "retryable": False,
        "context": {"received_chars": 10},
    }


def test_tags_keep_their_order_and_lose_repeats() -> None:
    assert names.require_tags(["b", "a", "b", "B"]) == ["b", "a", "B"]


def test_ten_tags_are_enough() -> None:
    ten = [f"t{number}" for number in range(10)]
    assert names.require_tags([*ten, "t0"]) == ten
    with pytest.raises(InvalidParameterError):
        names.require_tags([*ten, "t10"])


def test_a_description_is_any_text_of_a_thousand_characters() -> None:
    for good in ("", "\U0001f600" * 1000, "lines\nand 'quotes' %_\\"):
        assert names.require_description(good) == good


@pytest.mark.parametrize("bad", ["x" * 1001, "a\x00b", "\ud83d"])
def test_a_description_no_database_can_hold_is_refused(bad: str) -> None:
    with pytest.raises(InvalidParameterError) as refused:
        names.require_description(bad)
    assert refused.value.context["field"] == "description"
