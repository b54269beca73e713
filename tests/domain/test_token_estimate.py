"""Texts too long to count whole, with a tokenizer whose truth is known: one token a word, or a piece of one."""

from __future__ import annotations

import math
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cwm.domain.token_estimate import (
    CHUNK_CHARS,
    COUNTED_CHARS,
    Measure,
    chunks,
    count_whole,
    estimate,
    fitted,
    spread,
)

pytestmark = pytest.mark.slow


def count(text: str) -> int:
    """A token for each four letters of a word, and one for each other character that is no space."""
    words = re.findall(r"[^\W_]+|[^\s\w]|_", text)
    return sum(-(-len(word) // 4) for word in words)


class Counted:
    def __init__(self) -> None:
        self.chars = 0

    def __call__(self, text: str) -> int:
        self.chars += len(text)
        return count(text)


def test_a_text_up_to_the_bound_is_counted_whole() -> None:
    text = ("dense," * COUNTED_CHARS)[:COUNTED_CHARS]
    counted = Counted()
    assert estimate(text, counted) == count(text)
    assert counted.chars == COUNTED_CHARS


def test_a_text_of_one_kind_is_estimated_from_a_small_part_of_it() -> None:
    text = "the gateway answers, and an agent reads. " * 100_000
    counted = Counted()
    assert estimate(text, counted) == pytest.approx(count(text), rel=0.01)
    assert counted.chars < COUNTED_CHARS


@pytest.mark.parametrize("period", [300, 4_000, 16_384, 61_803])
def test_kinds_that_alternate_are_not_met_in_step(period: int) -> None:
    sparse, dense = "word " * (period // 5), "{}[]," * (period // 5)
    text = (sparse + dense) * (3_000_000 // (2 * period))
    assert estimate(text, count) == pytest.approx(count(text), rel=0.05)


def test_a_dense_tail_counts_by_its_length() -> None:
    text = "word " * 190_000 + "{}[]," * 10_000
    assert estimate(text, count) == pytest.approx(count(text), rel=0.05)


def test_a_text_whose_parts_differ_too_much_for_any_sample_is_counted_whole() -> None:
    text = " " * 150_000 + "{}[]," * 200 + " " * 149_000 + "a" * 5_000
    counted = Counted()
    assert estimate(text, counted) == count(text)
    assert counted.chars > len(text)


def test_a_few_dense_attachments_are_not_missed() -> None:
    places = random.Random(7)
    text = "".join(
        "word " * places.randrange(12_000) + "{}[]," * places.randrange(200, 400) for _ in range(100)
    )
    assert estimate(text, count) > 0.95 * count(text)


def test_white_space_that_makes_no_token_is_counted_whole() -> None:
    assert estimate(" " * 1_000_000, count) == 0


@given(st.text(alphabet="ab 1,\n", max_size=200), st.integers(1, 400))
def test_chunks_make_up_the_text_and_are_no_longer_than_they_may_be(part: str, times: int) -> None:
    text = part * times * 4
    pieces = list(chunks(text))
    assert "".join(pieces) == text
    assert max(map(len, pieces)) <= CHUNK_CHARS
    assert count_whole(text, count) >= count(text)


def test_chunks_end_between_words() -> None:
    text = "antidisestablishmentarianism, and " * 3_000
    assert all(piece.endswith(("ism", "and")) for piece in list(chunks(text))[:-1])
    assert count_whole(text, count) == count(text)


def test_slices_are_one_of_each_stretch() -> None:
    text = "".join(f"{number:06d} " for number in range(100_000))
    places = [int(piece.split()[0]) for piece in spread(text, 50)]
    assert all(2_000 * i <= place < 2_000 * (i + 1) for i, place in enumerate(places))


def test_the_line_is_found_where_there_is_one() -> None:
    line = fitted([Measure(100 + i, 10 + i % 7, 2 * (100 + i) - 3 * (10 + i % 7)) for i in range(50)])
    assert (line.per_char, line.per_space) == pytest.approx((2, -3))
    assert line.error == pytest.approx(0, abs=1e-9)


def test_slices_that_agree_have_no_error() -> None:
    assert fitted([Measure(100, 20, 25)] * 10).error == 0


def test_a_sample_without_tokens_tells_nothing() -> None:
    assert fitted([Measure(100, 100, 0)] * 10).error == math.inf


def test_a_trend_is_less_of_an_error_than_alternation() -> None:
    rising = [Measure(100, 0, 20 + i) for i in range(20)]
    alternating = [Measure(100, 0, 20 + 19 * (i % 2)) for i in range(20)]
    assert fitted(rising).error < fitted(alternating).error / 5
