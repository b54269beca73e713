"""The fault ladder of ``cwm bench faults``, a shorter one, on the suite's engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from cwm.domain.engine import Tier
from cwm_bench.faults.cases import TIERS, Case, Detector, summary
from cwm_bench.faults.run import climb
from cwm_bench.harness.damage import Fault
from cwm_bench.harness.gateway import QUIET
from tests.live.conftest import served
from tests.live.engine import LiveEngine

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

DELETED = {Fault.DELETE_FIRST, Fault.DELETE_MIDDLE, Fault.DELETE_LAST}


def must_detect(case: Case) -> Detector:
    """LMCache reads Redis before the disk, and falls back for a chunk that is gone, not for one that does not open."""
    if case.sound_copy and (case.tier is Tier.DISK or case.fault in DELETED):
        return Detector.OTHER_TIER
    if case.fault in DELETED:
        return Detector.PREFETCH
    return Detector.CANARY if case.fault is Fault.FORGE else Detector.SEAL


async def test_no_fault_in_any_tier_is_continued_from_and_each_is_detected_where_it_must_be(
    live_engine: LiveEngine, tmp_path: Path
) -> None:
    told: list[str] = []
    with served(live_engine, tmp_path / "cwm.db", "faults", **QUIET) as gateway:
        outcomes = await climb(live_engine, gateway.url, cases=24, seed=5, report=told.append)

    assert [outcome for outcome in outcomes if not outcome.right] == []
    assert [o for o in outcomes if o.detector is not must_detect(o.case)] == []
    alone = {(o.case.fault, o.case.tier) for o in outcomes if not o.case.sound_copy}
    assert alone == {(fault, tier) for fault in Fault for tier in TIERS}
    counted = summary(outcomes)
    assert (counted["cases"], counted["wrong_served"]) == (24, 0)
    assert all(counted["detected_at"][seen] for seen in ("seal", "prefetch", "canary", "other_tier"))
    assert told[-1].startswith("24 of 24 cases")
