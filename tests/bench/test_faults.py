from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cwm.domain.engine import Tier
from cwm.domain.prefix import stored_chunks
from cwm_bench.faults.cases import (
    TIERS,
    Case,
    CaseOutcome,
    ChunkPosition,
    Detector,
    Signs,
    context_length,
    deal,
    detector,
    summary,
)
from cwm_bench.harness.damage import Fault, flipped, truncated

CASE = Case(Fault.FLIP, Tier.REDIS, sound_copy=True, at=ChunkPosition(3, 1), other=None, share=0.5)


def signs(
    verification: str = "exact",
    found: int = 3,
    refused: int = 0,
    disk: int = 0,
    *,
    changed: bool = True,
) -> Signs:
    loads = {Tier.REDIS: 1, Tier.DISK: disk}
    return Signs(changed, verification, found, 3, 96, 4, refused, loads)


@given(st.integers(0, 1 << 32), st.integers(1, 100))
def test_a_seed_deals_the_same_cases_again(seed: int, count: int) -> None:
    assert deal(count, Random(seed)) == deal(count, Random(seed))


@given(st.integers(0, 1 << 32))
def test_a_round_has_every_fault_in_every_tier_alone_and_beside_a_sound_copy(seed: int) -> None:
    cases = deal(36, Random(seed))
    every = {(fault, tier) for fault in Fault for tier in TIERS}
    for half, sound_copy in ((cases[:18], False), (cases[18:], True)):
        assert {(case.fault, case.tier) for case in half} == every
        assert {case.sound_copy for case in half} == {sound_copy}


@given(st.integers(0, 1 << 32))
def test_the_chunks_of_a_case_are_those_that_its_fault_speaks_of(seed: int) -> None:
    for case in deal(36, Random(seed)):
        at, other = case.at, case.other
        assert 0 <= at.index < at.blocks
        assert other != at
        match case.fault:
            case Fault.DELETE_FIRST:
                assert at.index == 0
            case Fault.DELETE_MIDDLE:
                assert 0 < at.index < at.blocks - 1
            case Fault.DELETE_LAST:
                assert at.index == at.blocks - 1
            case Fault.SWAP_CHUNKS:
                assert other is not None
                assert other.blocks == at.blocks
            case Fault.SWAP_WINDOWS:
                assert other is not None
                assert other.blocks != at.blocks


@given(st.integers(0, 1 << 32), st.integers(3, 8), st.sampled_from([32, 64]))
def test_every_chunk_of_a_windows_context_is_one_that_its_freeze_stores(
    seed: int, blocks: int, chunk: int
) -> None:
    """Of a context that fills its last chunk, that chunk is stored by the next turn, and no thaw asks for it."""
    lengths = [context_length(blocks, chunk, Random(seed + each)) for each in range(50)]

    assert {stored_chunks(length, chunk) for length in lengths} == {blocks}
    assert len(set(lengths)) > 10


@given(st.binary(min_size=1), st.floats(0, 1, exclude_max=True))
def test_a_flip_changes_one_bit_and_a_truncation_keeps_less(value: bytes, share: float) -> None:
    changed = flipped(value, share)
    assert (int.from_bytes(changed) ^ int.from_bytes(value)).bit_count() == 1
    assert len(changed) == len(value)
    short = truncated(value, share)
    assert value.startswith(short)
    assert len(short) < len(value)


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (signs("mismatch", refused=2, disk=1), Detector.CANARY),
        (signs(changed=False), Detector.NOTHING_TO_DETECT),
        (signs(found=0, refused=3), Detector.SEAL),
        (signs(found=2), Detector.PREFETCH),
        (signs(disk=1), Detector.OTHER_TIER),
        (signs(), Detector.UNDETECTED),
    ],
    ids=lambda value: value.value if isinstance(value, Detector) else "",
)
def test_the_detector_is_told_from_what_the_thaw_left_behind(seen: Signs, expected: Detector) -> None:
    assert detector(CASE, seen) is expected


def test_the_summary_counts_what_was_served_wrong_and_who_noticed() -> None:
    counted = summary(
        [CaseOutcome(CASE, signs(found=2), right=True), CaseOutcome(CASE, signs(), right=False)]
    )
    assert (counted["cases"], counted["wrong_served"]) == (2, 1)
    assert counted["detected_at"] == {
        "seal": 0,
        "prefetch": 1,
        "canary": 0,
        "other_tier": 0,
        "nothing_to_detect": 0,
        "undetected": 1,
    }
    assert counted["by_fault"]["flip"]["wrong_served"] == 1
    assert counted["by_fault"]["zero"]["cases"] == 0
