"""Pauses between attempts grow, are bounded, and are not the same everywhere."""

from __future__ import annotations

from cwm.domain.backoff import Backoff


def test_pauses_double_up_to_the_longest_and_are_shortened_by_at_most_half() -> None:
    backoff = Backoff(first_seconds=1, longest_seconds=10)
    whole = [1, 2, 4, 8, 10, 10]
    pauses = [backoff.pause_seconds() for _ in whole]
    assert all(longest / 2 <= pause <= longest for pause, longest in zip(pauses, whole, strict=True))


def test_it_begins_anew_once_an_attempt_went_well() -> None:
    backoff = Backoff(first_seconds=1, longest_seconds=100)
    for _ in range(5):
        backoff.pause_seconds()
    backoff.reset()
    assert 0.5 <= backoff.pause_seconds() <= 1


def test_who_fails_together_does_not_try_again_together() -> None:
    assert len({Backoff().pause_seconds() for _ in range(20)}) > 1
