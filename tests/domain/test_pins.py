"""Repairing counters that only whole prefixes can move."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from cwm.domain.pins import pin_repairs

_NODES = 12


@st.composite
def forests(draw: st.DrawFn) -> list[tuple[str, ...]]:
    """Chains of chunk hashes: equal prefixes are equal chunks, as a chained hash makes them."""
    parents = [draw(st.integers(-1, node - 1)) for node in range(_NODES)]

    def chain(node: int) -> tuple[str, ...]:
        return () if node < 0 else (*chain(parents[node]), f"{node:02}")

    return [chain(node) for node in draw(st.lists(st.integers(0, _NODES - 1), min_size=1, max_size=8))]


def counted(chains: list[tuple[str, ...]]) -> Counter[str]:
    return Counter(name for chain in chains for name in chain)


def applied(chains: list[tuple[str, ...]], expected: Counter[str], actual: Counter[str]) -> Counter[str]:
    """What LMCache would have: each call moves a whole prefix, and no counter goes below 0."""
    ending = {name: chain[: at + 1] for chain in chains for at, name in enumerate(chain)}
    counts = Counter(actual)
    repairs, _ = pin_repairs(chains, expected, actual)
    for repair in repairs:
        for name in ending[repair.hash]:
            for _ in range(abs(repair.times)):
                counts[name] = max(0, counts[name] + (1 if repair.times > 0 else -1))
    return +counts


@given(chains=forests(), pinned=st.data())
def test_any_counts_become_the_expected_ones(chains: list[tuple[str, ...]], pinned: st.DataObject) -> None:
    expected = counted(pinned.draw(st.lists(st.sampled_from(chains), max_size=6)))
    known = sorted({name for chain in chains for name in chain})
    actual = Counter(pinned.draw(st.dictionaries(st.sampled_from(known), st.integers(0, 4))))
    assert applied(chains, expected, actual) == +expected


@given(chains=forests(), pinned=st.data())
def test_counts_that_are_right_are_left_alone(chains: list[tuple[str, ...]], pinned: st.DataObject) -> None:
    expected = counted(pinned.draw(st.lists(st.sampled_from(chains), max_size=6)))
    assert pin_repairs(chains, expected, expected) == ([], {})


def test_pins_on_chunks_of_no_known_prefix_are_told() -> None:
    repairs, unowned = pin_repairs([("a", "b")], {"a": 1, "b": 1}, {"a": 1, "b": 1, "x": 2})
    assert (repairs, unowned) == ([], {"x": 2})


def test_a_coordinator_that_lost_its_state_is_told_each_window_once() -> None:
    chains: list[tuple[str, ...]] = [("a", "b", "c"), ("a", "b", "d")]
    repairs, _ = pin_repairs(chains, counted(chains), {})
    assert [(repair.hash, repair.times) for repair in repairs] == [("c", 1), ("d", 1)]
