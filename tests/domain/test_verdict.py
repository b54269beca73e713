"""Verdicts on looks of a model that is made of numbers: what is right, what is damaged, and what only looks it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cwm.domain.canary import Canary, Origin
from cwm.domain.look import CANDIDATES, EXACT_NATS, Distance, Look, distance, numbered
from cwm.domain.noise import Noise, NoiseLimits
from cwm.domain.verdict import Evidence, Verification, compare, judge, skipped

CHUNK: Final = 32
PLACES: Final = tuple(number * CHUNK + 1 for number in range(1, 65))
NUMBERS: Final = numbered(PLACES, range(7))
SURE: Final = NUMBERS[len(PLACES) - 1 :]
"""The last place and the probes behind it."""
RIGHT: Final = Look(NUMBERS, tuple({token: -0.5 * token for token in range(CANDIDATES)} for _ in NUMBERS))
FLOAT32: Final = NoiseLimits(EXACT_NATS, 0.0, EXACT_NATS)
LAST: Final = PLACES[-1]


def moved(look: Look, changes: Mapping[int, float]) -> Look:
    """The look with one candidate moved by so many nats at these places."""
    top = tuple(
        {**each, 1: each[1] + changes.get(place, 0.0)}
        for place, each in zip(look.places, look.top, strict=True)
    )
    return Look(look.places, top)


def seen(look: Look, seed: int) -> Look:
    """As bfloat16 shows it: three places of a hundred are up to half a nat off, each time others."""
    random = Random(seed)
    return moved(look, {place: random.uniform(0, 0.5) for place in NUMBERS if random.random() < 0.03})


def recomputed(seed: int = 900) -> Look:
    """The same context computed in other shapes: most places move, by 0.16 nats in the mean and 0.5 at most."""
    random = Random(seed)
    return moved(RIGHT, {place: random.uniform(0.02, 0.5) for place in NUMBERS if random.random() < 0.6})


def measured(seeds: Sequence[int] = range(100, 120)) -> NoiseLimits:
    looks = [seen(RIGHT, seed) for seed in seeds]
    return (
        Noise()
        .plus([distance([one], [other], SURE) for one in looks for other in looks if one is not other], 0.3)
        .limits
    )


BFLOAT16: Final = measured()


def damaged_behind(look: Look, place: int) -> Look:
    """A chunk of another text: far off right behind it, and a little at all later places."""
    later = {each: 0.08 for each in NUMBERS if each > place}
    return moved(look, {place: 1.6, **later})


def canary(origin: Origin = Origin.COMPUTED, look: Look = RIGHT) -> Canary:
    return Canary(look, origin, look.at(SURE))


def judged(
    restored: Look,
    fresh: Look,
    *,
    before: Canary | None = None,
    limits: NoiseLimits = BFLOAT16,
    noisy: bool = True,
) -> Evidence:
    """The verdict of a control on two earlier looks at the restored KV and the four of the control."""
    of_restored, of_fresh = (
        [seen(look, seed) if noisy else look for seed in seeds]
        for look, seeds in ((restored, range(1, 5)), (fresh, range(5, 7)))
    )
    return judge(
        before or canary(),
        of_restored[:2],
        (of_restored[2], of_restored[3]),
        (of_fresh[0], of_fresh[1]),
        limits,
    )


def test_right_kv_of_an_engine_without_noise_is_exact_at_the_probes_already() -> None:
    evidence = compare(canary(), [RIGHT.at(SURE)])
    assert evidence == Evidence(Verification.EXACT, Distance(8, agreed=SURE[-1] - 1), None, Origin.COMPUTED)
    assert (evidence.compared_with, evidence.reason) == ("canary", "")


def test_right_kv_of_a_noisy_engine_is_within_noise_once_the_noise_is_known() -> None:
    looks = [seen(RIGHT, seed) for seed in (1, 2)]
    assert compare(canary(), looks[:1]).verification is Verification.UNDECIDED
    evidence = compare(canary(), looks, BFLOAT16)
    assert evidence.verification in {Verification.EXACT, Verification.WITHIN_NOISE}
    assert evidence.limits is BFLOAT16


def test_a_place_that_differs_in_one_look_and_not_in_the_other_does_not_differ() -> None:
    looks = [moved(RIGHT, {SURE[3]: 0.4}), moved(RIGHT, {SURE[6]: 0.4})]
    assert compare(canary(), looks).verification is Verification.EXACT


@pytest.mark.parametrize("limits", [FLOAT32, BFLOAT16])
@pytest.mark.parametrize("place", [PLACES[0], PLACES[30], LAST])
def test_damage_behind_any_chunk_asks_for_a_control_whatever_the_noise(
    limits: NoiseLimits, place: int
) -> None:
    damaged = damaged_behind(RIGHT, place)
    assert compare(canary(), [damaged, damaged], limits).verification is Verification.UNDECIDED


@pytest.mark.parametrize(("noisy", "limits"), [(False, FLOAT32), (True, BFLOAT16)])
@pytest.mark.parametrize("place", [PLACES[0], PLACES[30], LAST])
def test_damage_is_a_mismatch_where_it_begins_also_behind_the_last_chunk_alone(
    place: int, limits: NoiseLimits, *, noisy: bool
) -> None:
    evidence = judged(damaged_behind(RIGHT, place), RIGHT, limits=limits, noisy=noisy)
    assert evidence.verification is Verification.MISMATCH
    assert evidence.compared_with == "canary_and_control"
    assert evidence.distance.share == 1


def test_kv_behind_another_beginning_is_a_mismatch_without_noise_though_it_moves_little() -> None:
    """What 4,000 tokens behind a stale chunk expected in float32."""
    stale = moved(RIGHT, dict.fromkeys(NUMBERS, 0.0005))
    assert compare(canary(), [stale], FLOAT32).verification is Verification.UNDECIDED
    assert judged(stale, RIGHT, limits=FLOAT32, noisy=False).verification is Verification.MISMATCH


def test_damage_that_moves_every_place_by_less_than_noise_moves_one_is_a_mismatch() -> None:
    faint = moved(RIGHT, dict.fromkeys(NUMBERS, 0.14))
    assert BFLOAT16.largest > 0.14
    assert (
        compare(canary(), [seen(faint, 1), seen(faint, 2)], BFLOAT16).verification is Verification.UNDECIDED
    )
    assert judged(faint, RIGHT).verification is Verification.MISMATCH


def test_right_kv_is_not_condemned_for_kv_computed_afresh_that_is_further_off() -> None:
    evidence = judged(RIGHT, recomputed())
    assert evidence.verification in {Verification.EXACT, Verification.WITHIN_NOISE}
    control = evidence.control
    assert control is not None
    assert 0.3 < control.restored.largest <= 1.0
    assert control.restored.mean > 0.1


@pytest.mark.parametrize("seed", range(20))
def test_right_kv_whose_looks_were_further_off_than_the_limits_is_not_condemned(seed: int) -> None:
    """The noise may be larger in company than it was when it was measured."""
    far = [moved(RIGHT, {SURE[seed % 8]: 0.9 + 0.1 * at, SURE[(seed + 3) % 8]: 0.9}) for at in range(4)]
    evidence = judge(canary(), far[:2], (far[2], far[3]), (recomputed(seed), recomputed(seed)), FLOAT32)
    assert evidence.verification is not Verification.MISMATCH
    assert evidence.verification is not Verification.EXACT


def test_noise_that_is_larger_just_now_than_it_was_measured_condemns_nothing() -> None:
    up, down = (moved(RIGHT, {SURE[2]: by}) for by in (1.2, -1.2))
    evidence = judge(canary(), (up, down), (up, down), (RIGHT, RIGHT), FLOAT32)
    assert evidence.verification is Verification.WITHIN_NOISE
    assert evidence.control is not None
    assert evidence.control.itself.largest == pytest.approx(2.4)


def test_wrong_kv_is_found_beside_kv_computed_afresh_that_is_itself_far_off() -> None:
    evidence = judged(damaged_behind(RIGHT, LAST), recomputed())
    assert not evidence.verification.is_good
    far = moved(RIGHT, dict.fromkeys(SURE, 1.6))
    assert judged(far, recomputed()).verification is Verification.MISMATCH


def test_a_canary_that_restored_and_computed_kv_agree_against_is_stale() -> None:
    now = moved(RIGHT, dict.fromkeys(NUMBERS, 3.0))
    evidence = judged(now, now)
    assert (evidence.verification, evidence.verification.is_good) == (Verification.CANARY_STALE, True)
    assert "agree" in evidence.reason
    exact = judged(now, now, limits=FLOAT32, noisy=False)
    assert exact.verification is Verification.CANARY_STALE


def test_what_differs_from_the_canary_and_from_what_is_computed_by_little_more_than_noise_is_undecided() -> (
    None
):
    between = moved(RIGHT, dict.fromkeys(NUMBERS, 0.6))
    evidence = judged(between, moved(RIGHT, dict.fromkeys(NUMBERS, 1.2)), limits=FLOAT32, noisy=False)
    assert (evidence.verification, evidence.verification.is_good) == (Verification.UNDECIDED, False)
    assert evidence.reason


@given(st.lists(st.floats(0, 3), min_size=64, max_size=64))
def test_an_unproven_canary_proves_nothing_by_itself(changes: list[float]) -> None:
    look = moved(RIGHT, dict(zip(NUMBERS, changes, strict=False)))
    evidence = compare(canary(Origin.UNPROVEN), [look], BFLOAT16)
    assert evidence.verification in {Verification.SKIPPED, Verification.UNDECIDED}
    assert evidence.sound_tokens == 0


def test_an_unproven_canary_that_equals_the_restored_kv_is_skipped_with_the_reason() -> None:
    evidence = compare(canary(Origin.UNPROVEN), [RIGHT])
    assert (evidence.verification, evidence.distance.places) == (Verification.SKIPPED, len(SURE))
    assert "nothing has proven" in evidence.reason


@pytest.mark.parametrize("origin", [Origin.COMPUTED, Origin.INHERITED])
def test_a_proven_canary_counts_wherever_its_proof_comes_from(origin: Origin) -> None:
    assert compare(canary(origin), [RIGHT]).verification is Verification.EXACT


def test_beside_an_unproven_canary_the_control_alone_decides() -> None:
    """The canary was recorded on the very KV that is wrong."""
    wrong = damaged_behind(RIGHT, PLACES[30])
    unproven = canary(Origin.UNPROVEN, wrong)
    found = judged(wrong, RIGHT, before=unproven, limits=FLOAT32, noisy=False)
    assert (found.verification, found.sound_tokens) == (Verification.MISMATCH, PLACES[29] - 1)
    assert judged(wrong, RIGHT, before=unproven).verification is Verification.MISMATCH
    faint = moved(RIGHT, {LAST: 0.3})
    of_float32 = judged(faint, RIGHT, before=unproven, limits=FLOAT32, noisy=False)
    assert of_float32.verification is Verification.MISMATCH
    right = canary(Origin.UNPROVEN, moved(RIGHT, dict.fromkeys(NUMBERS, 0.4)))
    assert judged(RIGHT, RIGHT, before=right, limits=FLOAT32, noisy=False).verification is Verification.EXACT
    assert judged(RIGHT, recomputed(), before=right).verification is Verification.WITHIN_NOISE


def test_a_canary_of_other_places_is_compared_with_nothing() -> None:
    evidence = compare(canary(look=Look((7,), ({1: -1.0},))), [RIGHT])
    assert (evidence.verification, evidence.compared_with) == (Verification.SKIPPED, "nothing")


@pytest.mark.parametrize(
    ("place", "sound_tokens"), [(PLACES[0], 0), (PLACES[1], CHUNK), (LAST, LAST - 1 - CHUNK)]
)
def test_what_is_suspect_begins_with_the_chunk_in_front_of_the_first_place_that_differs(
    place: int, sound_tokens: int
) -> None:
    evidence = judged(damaged_behind(RIGHT, place), RIGHT, limits=FLOAT32, noisy=False)
    assert evidence.sound_tokens == sound_tokens


def test_where_places_are_spread_every_chunk_since_the_last_right_place_is_suspect() -> None:
    spread = (*PLACES[::8], *SURE)
    evidence = judged(
        damaged_behind(RIGHT, PLACES[20]).at(spread), RIGHT.at(spread), limits=FLOAT32, noisy=False
    )
    assert evidence.sound_tokens == PLACES[16] - 1


def test_only_a_mismatch_and_what_is_not_known_are_not_gone_on_from() -> None:
    good = {each for each in Verification if each.is_good}
    assert good == {Verification.EXACT, Verification.WITHIN_NOISE, Verification.CANARY_STALE}
    assert skipped("why").reason == "why"
