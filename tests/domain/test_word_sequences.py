"""Sequences of words that are looked for together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cwm.domain.word_sequences import WordSequences

WORDS = st.lists(st.sampled_from("abc"), max_size=30)


@given(st.lists(st.lists(st.sampled_from("abc"), max_size=5), max_size=12), WORDS)
def test_a_sequence_is_found_where_it_stands_without_a_gap_and_nowhere_else(
    sequences: list[list[str]], words: list[str]
) -> None:
    expected = ["".join(sequence) in "".join(words) for sequence in sequences]
    assert WordSequences(sequences).found_in(words) == expected


def test_a_word_is_no_part_of_another() -> None:
    assert WordSequences([["a", "b"], ["ab"]]).found_in(["ab", "a"]) == [False, True]
