from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cwm.domain.look import EXACT_NATS, Distance
from cwm.domain.noise import Noise, NoiseLimits

_distances = st.lists(
    st.builds(
        lambda differing, more, largest: Distance(differing + more, differing, largest, largest / 2),
        st.integers(0, 16),
        st.integers(1, 16),
        st.floats(0, 2),
    ),
    max_size=40,
)


def pairs(count: int, largest: float = 0.0, differing: int = 0, places: int = 16) -> list[Distance]:
    return [Distance(places, differing, largest, largest / 4)] * count


def test_noise_is_measured_once_there_are_sixty_four_pairs_and_a_text_was_computed_twice() -> None:
    assert not Noise().is_measured
    assert not Noise().plus(pairs(63), 0.0).is_measured
    assert Noise().plus(pairs(63), 0.0).plus(pairs(1)).is_measured
    assert not Noise().plus(pairs(64)).is_measured, "what computing twice does is not known"


def test_computing_twice_may_differ_by_twice_what_was_measured() -> None:
    assert Noise().limits.computed == 1.0
    assert Noise().plus([], 0.0).limits.computed == EXACT_NATS
    assert Noise().plus([], 0.3).plus([], 0.1).limits.computed == pytest.approx(0.6)


def test_where_neither_looks_nor_computations_ever_differ_only_what_is_exact_is_allowed() -> None:
    limits = Noise().plus(pairs(64), 0.0).limits
    assert limits == NoiseLimits(EXACT_NATS, 0.0, EXACT_NATS)
    assert limits.allow(Distance(16, 0, EXACT_NATS, 0.0))
    assert not limits.allow(Distance(16, 1, 0.002, 0.0001))


def test_the_limits_are_half_as_much_again_as_what_ninety_nine_of_a_hundred_pairs_stay_within() -> None:
    noise = Noise().plus([Distance(16, at // 10, at / 200, 0.0) for at in range(100)])
    assert noise.limits.largest == pytest.approx(0.495 * 1.5)
    assert noise.limits.share == pytest.approx(9 / 16 * 1.5, abs=1e-3)


def test_a_few_pairs_far_off_do_not_widen_the_limits() -> None:
    quiet, loud = Noise().plus(pairs(254, 0.1, 1)), Distance(16, 16, 3.0, 2.0)
    assert quiet.plus([loud, loud]).limits == quiet.limits


def test_one_place_more_than_the_share_may_differ() -> None:
    limits = NoiseLimits(0.3, 0.05, 0.5)
    assert limits.allow(Distance(64, 4, 0.3, 0.01))
    assert not limits.allow(Distance(64, 5, 0.3, 0.01))
    assert limits.allow(Distance(8, 1, 0.5, 0.01)), "in company one probe may differ as computing twice does"
    assert not limits.allow(Distance(8, 1, 0.51, 0.01))


@pytest.mark.parametrize(
    ("count", "largest", "is_too_large"), [(64, 1.01, True), (64, 1.0, False), (63, 5.0, False)]
)
def test_noise_of_more_than_a_nat_hides_damage_once_it_is_measured(
    count: int, largest: float, *, is_too_large: bool
) -> None:
    assert Noise().plus(pairs(count, largest, 8), 0.1).is_too_large is is_too_large


@given(_distances, _distances)
def test_the_latest_pairs_are_kept_and_no_more_than_a_bound(
    before: list[Distance], after: list[Distance]
) -> None:
    noise = Noise().plus(before * 80).plus(after)
    assert len(noise.pairs) == min(256, len(before) * 80 + len(after))
    assert [largest for largest, _ in noise.pairs[len(noise.pairs) - len(after) :]] == [
        round(each.largest, 4) for each in after
    ]


@given(_distances)
def test_noise_comes_back_from_its_record(distances: list[Distance]) -> None:
    noise = Noise().plus(distances, 0.25)
    assert Noise.from_dict(json.loads(json.dumps(noise.as_dict()))) == noise


@given(_distances)
def test_nearly_all_of_what_was_measured_is_within_the_limits(distances: list[Distance]) -> None:
    limits = Noise().plus(distances).limits
    beyond = [each for each in distances if each.largest > limits.largest + 1e-3]
    assert len(beyond) <= len(distances) // 100
