"""Each policy against a list that is sorted anew for every question."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cwm.domain.eviction import Eviction, Facts, Policy, policy_of

pytestmark = pytest.mark.slow

KEYS = st.integers(0, 12)
FACTS = st.builds(
    Facts,
    size=st.integers(0, 5),
    priority=st.integers(0, 3),
    ends_at=st.sampled_from([1.0, 2.0, 3.0, float("inf")]),
    uses=st.integers(1, 5),
)


class Kept:
    """All that any policy may go by."""

    def __init__(self, facts: Facts, used: int) -> None:
        self.facts = facts
        self.used = used
        self.uses = facts.uses


ORDERS: dict[Eviction, Callable[[Kept], Any]] = {
    Eviction.LRU: lambda kept: kept.used,
    Eviction.LFU: lambda kept: (kept.uses, kept.used),
    Eviction.TTL: lambda kept: (kept.facts.ends_at, kept.used),
    Eviction.PRIORITY: lambda kept: (kept.facts.priority, kept.used),
    Eviction.SIZE: lambda kept: (-kept.facts.size, kept.used),
}


def machine_of(eviction: Eviction) -> type[RuleBasedStateMachine]:
    class Machine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.policy: Policy[int] = policy_of(eviction)
            self.kept: dict[int, Kept] = {}
            self.clock = 0

        def tick(self) -> int:
            self.clock += 1
            return self.clock

        @rule(key=KEYS, facts=FACTS)
        def add(self, key: int, facts: Facts) -> None:
            self.policy.add(key, facts)
            self.kept[key] = Kept(facts, self.tick())

        @precondition(lambda self: self.kept)
        @rule(data=st.data(), times=st.integers(1, 40))
        def touch(self, data: st.DataObject, times: int) -> None:
            key = data.draw(st.sampled_from(sorted(self.kept)))
            for _ in range(times):
                self.policy.touch(key)
                self.kept[key].used = self.tick()
                self.kept[key].uses += 1

        @rule(key=KEYS)
        def remove(self, key: int) -> None:
            self.policy.remove(key)
            self.kept.pop(key, None)

        @precondition(lambda self: self.kept)
        @rule()
        def evict(self) -> None:
            victim = self.policy.victim()
            assert victim == self.first()
            self.policy.remove(victim)
            del self.kept[victim]

        def first(self) -> int:
            return min(self.kept, key=lambda key: ORDERS[eviction](self.kept[key]))

        @invariant()
        def agrees(self) -> None:
            assert len(self.policy) == len(self.kept)
            assert self.policy.victim() == (self.first() if self.kept else None)

    return Machine


@pytest.mark.parametrize("eviction", Eviction)
def test_a_policy_lets_go_in_its_order(eviction: Eviction) -> None:
    machine = machine_of(eviction)
    machine.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
    machine.TestCase("runTest").debug()


@pytest.mark.parametrize("eviction", Eviction)
def test_what_is_touched_over_and_over_takes_no_more_room(eviction: Eviction) -> None:
    policy: Any = policy_of(eviction)
    for key in range(10):
        policy.add(key, Facts())
    for turn in range(10_000):
        policy.touch(turn % 10)
    assert len(policy._heap) < 100
