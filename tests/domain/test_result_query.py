from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cwm.domain.result_query import Lines, Query, QueryKind, Span, count_lines, head, matches_by_line, tail

texts = st.lists(st.sampled_from(["a", "bé", "\n", "\r\n", ""]), max_size=60).map("".join)


def spans_of(text: str, words: str) -> list[Span]:
    body, sought, found, at = text.encode(), words.encode(), [], -1
    while (at := body.find(sought, at + 1)) >= 0:
        found.append(Span(at, at + len(sought)))
    return found


def shown(text: str, words: str, context: int = 0) -> str:
    return matches_by_line(text.encode(), spans_of(text, words), context)


@given(texts, st.integers(1, 20))
def test_head_and_tail_are_whole_lines_of_the_text(text: str, lines: int) -> None:
    body = text.encode()
    split = body.split(b"\n")
    kept = [line + b"\n" for line in split[:-1]] + ([split[-1]] if split[-1] else [])
    assert head(body, lines) == b"".join(kept[:lines])
    assert tail(body, lines) == b"".join(kept[-lines:])
    assert count_lines(body) == len(kept)


@given(texts)
def test_lines_are_found_by_where_they_are(text: str) -> None:
    body = text.encode()
    lines = Lines(body)
    assert len(lines) == max(count_lines(body), 1)
    for number in range(len(lines)):
        span = lines.span(number)
        assert b"\n" not in body[span.start : span.end]
        assert lines.holding(span.start) == number


def test_matching_lines_have_their_numbers() -> None:
    assert shown("one\ntwo\none two\n", "one") == "1:one\n3:one two\n"
    assert shown("one", "zwei") == ""


def test_a_line_with_two_matches_is_shown_once() -> None:
    assert shown("one one\n", "one") == "1:one one\n"


def test_context_is_marked_and_never_told_twice() -> None:
    text = "a\nb\nHIT\nd\nHIT\nf\ng\nh\ni\nHIT\n"
    assert shown(text, "HIT", 1) == "2-b\n3:HIT\n4-d\n5:HIT\n6-f\n--\n9-i\n10:HIT\n"


def test_of_a_long_line_only_what_is_around_each_match_is_shown() -> None:
    line = "x" * 1_000 + "HIT" + "y" * 1_000 + "HIT"
    first, second = shown(f"short\n{line}\n", "HIT").splitlines()
    assert first == f"2:1001:…{'x' * 160}HIT{'y' * 160}…"
    assert second == f"2:2004:…{'y' * 160}HIT"


def test_a_long_match_is_cut_too() -> None:
    body = b"h" * 5_000
    assert len(matches_by_line(body, [Span(0, 5_000)], 0)) < 400


def test_what_is_cut_in_a_character_leaves_it_out() -> None:
    line = "é" * 500 + "xHIT" + "é" * 500
    (entry,) = shown(line, "HIT").splitlines()
    assert "�" not in entry


def test_a_long_line_of_context_is_told_by_its_beginning() -> None:
    text = "z" * 1_000 + "\nHIT\n"
    assert shown(text, "HIT", 1) == f"1-{'z' * 160}…\n2:HIT\n"


@pytest.mark.parametrize(
    "other",
    [
        Query(QueryKind.SEARCH, "a"),
        Query(QueryKind.REGEX, "b"),
        Query(QueryKind.REGEX, "a", 1),
        Query(QueryKind.HEAD, 1),
    ],
)
def test_two_queries_are_never_told_alike(other: Query) -> None:
    assert other.told != Query(QueryKind.REGEX, "a").told
