from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cwm.domain.look import EXACT_NATS, Distance, Look, distance, numbered, places_of, probes_of

_counts = st.integers(0, 20_000)
_chunks = st.sampled_from([16, 32, 64, 256])
_most = st.integers(0, 80)
_values = st.floats(-20, 0, allow_nan=False)
_tops = st.dictionaries(st.integers(0, 20), _values, min_size=1, max_size=10)


@st.composite
def looks(draw: st.DrawFn) -> Look:
    places = draw(st.lists(st.integers(1, 40), unique=True, max_size=8).map(sorted))
    return Look(tuple(places), tuple(draw(_tops) for _ in places))


@given(_counts, _chunks, _most)
def test_places_rise_and_each_is_one_token_behind_a_chunk_of_the_context(
    tokens: int, chunk: int, most: int
) -> None:
    places = places_of(tokens, chunk, most)
    assert list(places) == sorted(set(places))
    assert all(place % chunk == 1 and chunk < place <= tokens for place in places)


@given(_counts, _chunks, _most)
def test_there_is_a_place_behind_every_chunk_or_as_many_as_are_wanted(
    tokens: int, chunk: int, most: int
) -> None:
    chunks = max(0, (tokens - 1) // chunk)
    assert len(places_of(tokens, chunk, most)) == min(chunks, most)


@given(_counts, _chunks, _most)
def test_the_last_four_chunks_have_a_place_each_however_many_there_are(
    tokens: int, chunk: int, most: int
) -> None:
    chunks = max(0, (tokens - 1) // chunk)
    last = [number * chunk + 1 for number in range(max(1, chunks - min(4, most) + 1), chunks + 1)]
    assert set(last) <= set(places_of(tokens, chunk, most))


@given(st.integers(2, 20_000), st.integers(8, 80))
def test_no_part_of_a_context_is_without_a_place_for_long(chunks: int, most: int) -> None:
    places = [0, *((place - 1) for place in places_of(chunks + 1, 1, most))]
    gaps = [after - before for before, after in itertools.pairwise(places)]
    assert max(gaps) <= -(-chunks // (min(most, chunks) - min(4, chunks - 1))) + 1


@given(st.lists(st.integers(0, 2_000), min_size=1, max_size=300), st.integers(1, 9))
def test_probes_are_tokens_of_the_context_and_the_same_each_time(context: list[int], count: int) -> None:
    probes = probes_of(context, count)
    assert len(probes) == count
    assert set(probes) <= set(context)
    assert probes == probes_of(tuple(context), count)


def test_probes_are_numbered_on_from_the_last_place() -> None:
    assert numbered((33, 65), (7, 7, 9)) == (33, 65, 66, 67, 68)
    assert numbered((33,), ()) == (33,)


@given(looks())
def test_a_look_comes_back_from_its_record_to_the_last_digit_that_is_kept(look: Look) -> None:
    again = Look.from_dict(json.loads(json.dumps(look.as_dict())))
    assert (again.places, [set(top) for top in again.top]) == (look.places, [set(top) for top in look.top])
    assert distance([look], [again]).largest < EXACT_NATS / 20


@given(looks(), st.sets(st.integers(1, 40)))
def test_a_part_of_a_look_has_the_places_that_both_name(look: Look, places: set[int]) -> None:
    part = look.at(places)
    assert part.places == tuple(place for place in look.places if place in places)
    assert part.top == tuple(look.top[look.places.index(place)] for place in part.places)


@given(st.lists(looks(), max_size=3), st.lists(looks(), max_size=3))
def test_it_is_as_far_there_as_back(ones: list[Look], others: list[Look]) -> None:
    assert distance(ones, others) == distance(others, ones)


@given(looks())
def test_a_look_is_no_distance_from_itself(look: Look) -> None:
    last = look.places[-1] - 1 if look.places else 0
    assert distance([look], [look]) == Distance(len(look.places), agreed=last)
    assert distance([look], [look]).is_exact


@given(looks(), looks(), st.sets(st.integers(1, 40)))
def test_a_distance_at_some_places_is_that_of_the_parts_of_the_looks(
    one: Look, other: Look, places: set[int]
) -> None:
    assert distance([one], [other], places) == distance([one.at(places)], [other.at(places)])


@given(looks(), looks(), looks())
def test_a_further_look_brings_no_place_further_off(one: Look, other: Look, further: Look) -> None:
    before = distance([one], [other])
    after = distance([one], [other, further.at(other.places)])
    assert (after.places, after.largest <= before.largest) == (before.places, True)
    assert (after.mean <= before.mean, after.differing <= before.differing) == (True, True)


@given(looks(), looks())
def test_the_largest_change_is_at_least_the_mean_and_some_place_differs_if_any_figure_does(
    one: Look, other: Look
) -> None:
    apart = distance([one], [other])
    assert 0 <= apart.mean <= apart.largest
    assert apart.is_exact == (apart.differing == 0) == (apart.first is None)
    assert apart.first is None or apart.agreed < apart.first


def test_looks_that_share_no_place_say_nothing() -> None:
    assert distance([Look((33,), ({1: -1.0},))], [Look((65,), ({1: -1.0},))]) == Distance()


def test_a_place_where_no_candidate_is_shared_is_far_off() -> None:
    apart = distance([Look((33,), ({1: -1.0, 2: -2.0},))], [Look((33,), ({3: -1.0, 4: -2.0},))])
    assert apart.largest > 20


def test_of_candidates_that_one_side_lists_alone_nothing_is_known() -> None:
    apart = distance([Look((33,), ({1: -1.0, 2: -2.0},))], [Look((33,), ({1: -1.25, 9: -2.0},))])
    assert (apart.largest, apart.differing) == (0.25, 1)


@pytest.mark.parametrize(
    ("changed", "first", "agreed"),
    [((), None, 96), ((33,), 33, 0), ((65, 97), 65, 32), ((97,), 97, 64)],
)
def test_a_distance_tells_the_first_place_that_differs_and_up_to_where_none_does(
    changed: tuple[int, ...], first: int | None, agreed: int
) -> None:
    places = (33, 65, 97)
    now = tuple({1: -2.0 if place in changed else -1.0} for place in places)
    apart = distance([Look(places, ({1: -1.0},) * 3)], [Look(places, now)])
    assert (apart.first, apart.agreed, apart.differing) == (first, agreed, len(changed))
    assert apart.mean == pytest.approx(len(changed) / 3, abs=1e-5)
    assert apart.last == (1.0 if 97 in changed else 0.0)
