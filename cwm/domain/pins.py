"""Pins: per-chunk counters without an owner, which can be raised and lowered only for whole prefixes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class PinRepair:
    """Pin (``times`` > 0) or unpin (< 0) the prefix that ends with chunk ``hash``, this many times."""

    hash: str
    times: int


def pin_repairs(
    chains: Iterable[Sequence[str]], expected: Mapping[str, int], actual: Mapping[str, int]
) -> tuple[list[PinRepair], dict[str, int]]:
    """Repairs that turn ``actual`` pin counts into ``expected`` ones, and the pins that no known chain explains.

    A chain lists the chunk hashes of a prefix by position; every expected chunk is in one. Pins come before unpins,
    so that no count drops below its expected value or reaches LMCache's floor of 0 too early.
    """
    children: dict[str, set[str]] = {}
    for chain in chains:
        for parent, child in pairwise(chain):
            children.setdefault(parent, set()).add(child)
        for name in chain:
            children.setdefault(name, set())
    missing = Counter({name: expected.get(name, 0) - actual.get(name, 0) for name in children})
    ending = {name: missing[name] - sum(missing[child] for child in children[name]) for name in children}
    repairs = [PinRepair(name, times) for name, times in ending.items() if times]
    unowned = {name: count for name, count in actual.items() if name not in children and count}
    return sorted(repairs, key=lambda repair: (repair.times < 0, repair.hash)), unowned
