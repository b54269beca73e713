"""Text of others has signs and escapes in place of what would change the text around it."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cwm.domain.visible_text import visible, visible_in_line, visible_json

# Scripts and emoji need them.
JOINERS = "\u200c\u200d"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\tb\nc", "a\tb\nc"),
        ("\x00\x1b\x7f\r\n", "␀␛␡␍\n"),
        ("\x9b1m\x85", "⟨U+009B⟩1m⟨U+0085⟩"),
        ("\u202eabc\ufeff\ud800", "⟨U+202E⟩abc⟨U+FEFF⟩⟨U+D800⟩"),
        ("a\u200b\u2060\u2028\U000e0041", "a⟨U+200B⟩⟨U+2060⟩⟨U+2028⟩⟨U+E0041⟩"),
        (
            "naïve 漢字 🙂 שלום 👩\u200d💻 می\u200cخواهم ❤\ufe0f",
            "naïve 漢字 🙂 שלום 👩\u200d💻 می\u200cخواهم ❤\ufe0f",
        ),
    ],
)
def test_only_what_shows_nothing_gets_a_sign(text: str, shown: str) -> None:
    assert visible(text) == shown
    assert visible(shown) == shown


def test_a_line_stays_one_line() -> None:
    assert visible_in_line("a\tb\nc\x1b") == "a␉b␊c␛"


@pytest.mark.parametrize("category", ["Cc", "Cs", "Zl", "Zp"])
def test_no_control_is_left(category: str) -> None:
    left = {chr(code) for code in range(0x110000) if unicodedata.category(chr(code)) == category}
    assert left & set(visible("".join(sorted(left)))) <= set("\t\n")


def test_no_format_character_without_a_shape_is_left() -> None:
    # Marks of Arabic, Syriac, Kaithi, hieroglyphs, shorthand and music have a shape, or stand in text of their script alone.
    text = "".join(chr(code) for code in range(0x110000) if unicodedata.category(chr(code)) == "Cf")
    left = {character for character in visible(text) if unicodedata.category(character) == "Cf"}
    assert {character for character in left if 0x2000 <= ord(character) < 0x10000} == set(JOINERS)


@given(st.text(st.characters(codec=None)))
def test_json_keeps_its_value(text: str) -> None:
    document = visible_json(json.dumps([text], ensure_ascii=False))
    assert json.loads(document) == json.loads(json.dumps([text]))
    assert visible(document) == document
