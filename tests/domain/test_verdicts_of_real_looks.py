"""Verdicts on looks that a real engine gave: in bfloat16, alone, beside eight streams and beside prefills, with right KV and with wrong KV.

The file beside this one has the probes of canaries, of restored and of computed KV; ``cwm_bench/proof`` plants the same faults. The tests draw from
it again and again, each time other looks of a case in another order, as chance might have given them.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from cwm.domain.canary import Canary, Origin
from cwm.domain.look import Distance, Look, distance
from cwm.domain.noise import Noise, NoiseLimits
from cwm.domain.verdict import Evidence, Verification, compare, judge

_FILE: Final = Path(__file__).with_name("looks_bfloat16_cpu.json.gz")
_DATA: Final = json.loads(gzip.decompress(_FILE.read_bytes()))
_DRAWS: Final = 3_000
_NUMBERS: Final = tuple(range(1, 9))
# Between the survey's two computations of one text.
_COMPUTED_TWICE: Final = 0.25


@dataclass(frozen=True, slots=True)
class Drawn:
    """``evidence`` before any control, ``verdict`` at the end."""

    planted: str | None
    evidence: Evidence
    verdict: Verification


def looks_of(probes: list[list[dict[str, float]]]) -> list[Look]:
    return [
        Look(_NUMBERS, tuple({int(token): value for token, value in top.items()} for top in each))
        for each in probes
    ]


def limits() -> NoiseLimits:
    """As an engine's survey measures them: two looks at right KV beside two others, alone."""
    apart: list[Distance] = []
    for row in _DATA["rows"]:
        if row["planted"] is None and row["company"] == "alone":
            one, two, three = looks_of(row["looks"])
            first, second = looks_of(row["restored"])
            apart += [distance([one, two], [three, first]), distance([one, three], [two, second])]
    return Noise().plus(apart * 6, _COMPUTED_TWICE).limits


LIMITS: Final = limits()


def drawn(row: dict[str, Any], random: Random) -> Drawn:
    """The verdict on one case, from looks in an order of chance."""
    before, restored = looks_of(row["canary"]), [*looks_of(row["looks"]), *looks_of(row["restored"])]
    fresh = looks_of(row["fresh"])
    for each in (before, restored, fresh):
        random.shuffle(each)
    canary = Canary(before[0], Origin.COMPUTED, before[1])
    few, *others = restored
    evidence = compare(canary, [few], LIMITS)
    if evidence.verification is Verification.UNDECIDED:
        evidence = compare(canary, restored, LIMITS)
    verdict = evidence.verification
    if verdict is Verification.UNDECIDED:
        pair = (others[0], others[1])
        verdict = judge(canary, restored, pair, (fresh[0], fresh[1]), LIMITS).verification
    return Drawn(row["planted"], evidence, verdict)


@pytest.fixture(scope="module")
def draws() -> list[Drawn]:
    def every() -> Iterator[Drawn]:
        random = Random(39)
        for _ in range(_DRAWS):
            yield drawn(random.choice(_DATA["rows"]), random)

    return list(every())


def test_the_file_has_every_company_and_every_fault() -> None:
    rows = _DATA["rows"]
    assert {row["company"] for row in rows} == {"alone", "streams", "prefills"}
    assert {row["planted"] for row in rows} == {None, "other_text", "shifted", "not_restored", "stale"}
    assert len(rows) > 90


def test_no_wrong_kv_is_continued_from(draws: list[Drawn]) -> None:
    wrong = [each for each in draws if each.planted]
    assert len(wrong) > 1_500
    assert [each for each in wrong if each.verdict.is_good] == []


def test_no_right_kv_is_condemned_and_one_in_a_hundred_at_most_asks_for_a_control(
    draws: list[Drawn],
) -> None:
    right = [each for each in draws if each.planted is None]
    assert len(right) > 700
    assert [each for each in right if each.verdict is Verification.MISMATCH] == []
    controls = [each for each in right if each.evidence.verification is Verification.UNDECIDED]
    assert len(controls) <= len(right) / 100


def test_the_same_looks_fool_a_fixed_tolerance() -> None:
    """Noise and damage overlap: the largest change at a right probe is larger than at the least of the wrong ones."""
    largest: dict[bool, list[float]] = {True: [], False: []}
    for row in _DATA["rows"]:
        apart = distance(looks_of(row["canary"])[:1], looks_of(row["looks"])[:1])
        largest[row["planted"] is None].append(apart.largest)
    assert max(largest[True]) > min(largest[False])
