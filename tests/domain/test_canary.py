from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cwm.domain.canary import Canary, Verification, compare

TOLERANCE = 0.05
_ids = st.lists(st.integers(0, 50), min_size=1, max_size=16)


def sung(*steps: tuple[int, dict[int, float]]) -> Canary:
    return Canary(tuple(token for token, _ in steps), tuple(likeliest for _, likeliest in steps))


def plain(*tokens: int) -> Canary:
    return sung(*((token, {token: -0.1, 900: -2.5}) for token in tokens))


@given(_ids)
def test_the_same_song_is_exact(tokens: list[int]) -> None:
    evidence = compare(plain(*tokens), plain(*tokens), TOLERANCE)
    assert (evidence.verification, evidence.deviation) == (Verification.EXACT, 0.0)
    assert evidence.tokens_compared == len(tokens)


@given(_ids, st.integers(0, 15))
def test_another_token_that_was_no_candidate_is_a_mismatch(tokens: list[int], at: int) -> None:
    at %= len(tokens)
    other = [*tokens[:at], 51, *tokens[at + 1 :]]
    evidence = compare(plain(*tokens), plain(*other), TOLERANCE)
    assert evidence.verification is Verification.MISMATCH
    assert evidence.first_difference == at


def test_the_same_tokens_with_other_probabilities_are_a_mismatch() -> None:
    expected = sung((1, {1: -0.1, 2: -3.0}))
    assert compare(expected, sung((1, {1: -0.14, 2: -3.0})), TOLERANCE).verification is Verification.EXACT
    changed = compare(expected, sung((1, {1: -0.2, 2: -2.0})), TOLERANCE)
    assert (changed.verification, changed.deviation) == (Verification.MISMATCH, 1.0)


def test_a_tie_that_broke_the_other_way_is_within_tolerance_whatever_follows() -> None:
    expected = sung((1, {1: -0.70, 2: -0.71}), (5, {5: -0.1, 6: -3.0}))
    replayed = sung((2, {2: -0.70, 1: -0.71}), (9, {9: -0.1, 8: -4.0}))
    evidence = compare(expected, replayed, TOLERANCE)
    assert (evidence.verification, evidence.first_difference) == (Verification.WITHIN_TOLERANCE, 0)


def test_a_choice_that_was_clear_and_went_the_other_way_is_a_mismatch() -> None:
    expected = sung((1, {1: -0.1, 2: -2.4}))
    assert compare(expected, sung((2, {2: -0.1, 1: -2.4})), TOLERANCE).verification is Verification.MISMATCH


def test_a_song_that_breaks_off_is_a_mismatch() -> None:
    assert compare(plain(1, 2, 3), plain(1, 2), TOLERANCE).verification is Verification.MISMATCH
    assert compare(plain(1, 2, 3), plain(), TOLERANCE).verification is Verification.MISMATCH


def test_candidates_that_only_one_side_lists_are_not_compared_and_none_in_common_is_a_mismatch() -> None:
    expected = sung((1, {1: -0.1, 2: -5.0}))
    assert compare(expected, sung((1, {1: -0.1, 3: -5.0})), TOLERANCE).verification is Verification.EXACT
    assert compare(expected, sung((1, {3: -0.1})), TOLERANCE).verification is Verification.MISMATCH


@given(_ids)
def test_a_canary_comes_back_from_its_record(tokens: list[int]) -> None:
    assert Canary.from_dict(plain(*tokens).as_dict()) == plain(*tokens)
