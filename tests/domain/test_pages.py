"""Pages put together are the body, byte for byte, and do not cut what belongs together."""

from __future__ import annotations

import base64
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cwm.domain.pages import MIN_PAGE_BYTES, Pages, page_bytes_for

json_values = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=60,
)
json_bodies = st.builds(
    lambda value, ascii_only: json.dumps(value, ensure_ascii=ascii_only), json_values, st.booleans()
)
edges = st.lists(
    st.sampled_from(
        [
            "\n",
            "\r\n",
            "a" * 90,
            "é",
            "e\u0301",
            "漢字",
            "👩🏽\u200d🚀",
            "🇩🇪🇫🇷",
            "\u1112\u1161\u11ab",
            "\x00",
            "\u0301" * 40,
        ]
    ),
    max_size=150,
).map("".join)
texts = st.one_of(json_bodies, edges, st.text(max_size=2_000)).map(str.encode)
binaries = st.binary(max_size=3_000)
lengths = st.integers(MIN_PAGE_BYTES, 700)


def four_bytes_a_token(text: str) -> int:
    return math.ceil(len(text.encode()) / 4)


def pieces(pages: Pages) -> list[tuple[int, int]]:
    return [(pages.start(page), pages.start(page + 1)) for page in range(pages.count)]


@given(texts, lengths)
def test_pages_of_text_put_together_are_the_text(body: bytes, length: int) -> None:
    pages = Pages(body, length)
    shown = [pages.shown(start, end) for start, end in pieces(pages)]
    assert "".join(shown).encode() == body
    assert all(shown) or shown == [""]


@given(binaries, lengths)
def test_pages_of_bytes_put_together_are_the_bytes_also_as_base64(body: bytes, length: int) -> None:
    pages = Pages(body, length, binary=True)
    shown = [pages.shown(start, end) for start, end in pieces(pages)]
    assert b"".join(base64.b64decode(each) for each in shown) == body
    assert "".join(shown) == base64.b64encode(body).decode()


@given(texts, lengths)
def test_a_page_is_about_as_long_as_it_should_be(body: bytes, length: int) -> None:
    for start, end in pieces(Pages(body, length))[:-1]:
        assert length * 0.5 < end - start < length * 1.5


@given(texts | binaries, lengths, st.data())
def test_every_byte_is_in_the_page_that_says_so(body: bytes, length: int, data: st.DataObject) -> None:
    pages = Pages(body, length, binary=True)
    offset = data.draw(st.integers(0, max(len(body) - 1, 0)))
    page = pages.holding(offset)
    assert pages.start(page) <= offset
    assert offset < pages.start(page + 1) or not body


@given(texts, lengths, st.integers(1, 120))
def test_pieces_that_fit_a_budget_put_together_are_the_text_too(
    body: bytes, length: int, tokens: int
) -> None:
    pages, read, start = Pages(body, length), b"", 0
    while start < len(body):
        end, taken = pages.fitting(start, pages.start(pages.holding(start) + 1), tokens, four_bytes_a_token)
        piece = pages.shown(start, end)
        assert end > start
        assert taken == four_bytes_a_token(piece)
        assert taken <= tokens or len(piece) == 1
        read, start = read + piece.encode(), end
    assert read == body


@given(binaries, lengths, st.integers(1, 120))
def test_pieces_of_bytes_that_fit_a_budget_put_together_are_the_bytes(
    body: bytes, length: int, tokens: int
) -> None:
    pages, shown, start = Pages(body, length, binary=True), "", 0
    while start < len(body):
        end, _ = pages.fitting(start, pages.start(pages.holding(start) + 1), tokens, four_bytes_a_token)
        shown, start = shown + pages.shown(start, end), end
    assert shown == base64.b64encode(body).decode()


@pytest.mark.parametrize(
    "cluster",
    [
        "é",
        "e\u0301",
        "漢",
        "👩🏽\u200d🚀",
        "🇩🇪",
        "\r\n",
        "\u1112\u1161\u11ab",
        "✈\ufe0f",
        "e\u0301\u0302\u0303",
    ],
)
@pytest.mark.parametrize("shift", range(20))
def test_what_is_shown_as_one_is_on_one_page(cluster: str, shift: int) -> None:
    text = "x" * (300 - shift) + cluster + "y" * 300
    pages = Pages(text.encode(), 300)
    assert sum(pages.shown(start, end).count(cluster) for start, end in pieces(pages)) == 1


def test_a_page_ends_after_a_line_where_one_ends_near() -> None:
    body = b"".join(b"line %d\n" % number for number in range(200))
    pages = Pages(body, 300)
    assert all(pages.shown(start, end).endswith("\n") for start, end in pieces(pages))


def test_marks_without_end_are_cut_all_the_same() -> None:
    body = ("a" + "\u0301" * 2_000).encode()
    pages = Pages(body, 256)
    assert "".join(pages.shown(start, end) for start, end in pieces(pages)).encode() == body


def test_nothing_has_one_empty_page() -> None:
    assert pieces(Pages(b"", 300)) == [(0, 0)]


@pytest.mark.parametrize("body", [b"word " * 4_000, b"\x00\xff" * 4_000, b"", "漢字".encode() * 1_000])
def test_pages_are_so_long_that_they_take_about_the_tokens_asked_for(body: bytes) -> None:
    length = page_bytes_for(body, 500, four_bytes_a_token, binary=b"\xff" in body)
    pages = Pages(body, length, binary=b"\xff" in body)
    taken = [four_bytes_a_token(pages.shown(start, end)) for start, end in pieces(pages)]
    assert max(taken) <= 550
    assert all(each > 400 for each in taken[:-1])


def test_the_heaviest_sample_decides_how_long_pages_are() -> None:
    def heavy_digits(text: str) -> int:
        return sum(4 if character.isdigit() else 1 for character in text)

    assert page_bytes_for(b"x" * 20_000, 1_000, heavy_digits) == 1_000
    assert page_bytes_for(b"x" * 20_000 + b"7" * 2_000, 1_000, heavy_digits) == MIN_PAGE_BYTES
